"""What forward and backward passes cost on this job's devices, learned from every step.

Guarantees: all ranks learn from the same numbers, so that their models are equal; a pass that ranks share
counts with the seconds of the rank that waited least for the others.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, islice
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from rljob_api.model import ActivationCheckpointing
from rljob_runtime.parallel.cost_model import CostModel, ModelShape
from rljob_runtime.parallel.hdp_plan import Plan, PlannedBatch
from rljob_runtime.parallel.pass_fit import MeasuredPass, OnlineFit
from rljob_runtime.parallel.rank_layout import expert_count
from rljob_runtime.trainer.attention_choice import Heads
from rljob_runtime.trainer.phases import Timed
from rljob_runtime.trainer.step_metrics import PassMetrics

_BACKWARD: dict[ActivationCheckpointing, float] = {"none": 2.0, "selective": 2.0, "full": 3.0}
"""Seconds of a backward part by those of the forward part, where none was measured: twice the products, and
those of the forward part where it is made a second time."""

_PER_TOKEN = ("num_experts_per_tok", "moe_topk")
"""Under which config.json says how many experts a token uses."""


@dataclass(frozen=True)
class PlannedUpdate:
    """The passes of an update, as planned."""

    plan: Plan
    lengths: Sequence[int]
    """Of the samples, in tokens."""

    def lengths_of(self, batch: PlannedBatch) -> tuple[int, ...]:
        """Of the samples of a pass."""
        return tuple(self.lengths[index] for index in batch.samples)


class PassTime(NamedTuple):
    """How long a pass took."""

    seconds: float
    compile_seconds: float = 0.0
    """In which torch compiled something in it, on the rank of those that share it where that took longest.
    Where there are any, `seconds` are not those of a pass, and a plan that believes them would go out of its
    way not to make such a pass again."""


class PassCosts:
    """The cost model of a job. Equal on all ranks, if all learn the same."""

    def __init__(self, prior: CostModel, largest_degree: int, in_step: bool) -> None:
        """`in_step`: ranks wait for each other in every pass, since weights are gathered in it; otherwise
        only for passes that they share, and at an update's end."""
        self.prior = prior
        """What was expected before anything was measured."""
        self._fit = OnlineFit(prior, largest_degree)
        self._in_step = in_step
        self._steps = 0

    @property
    def model(self) -> CostModel:
        """What plans of shared samples are made with."""
        return self._fit.model

    def learn(self, updates: Sequence[PlannedUpdate], times: Sequence[Sequence[PassTime]]) -> PassMetrics:
        """What was measured in a step: for each update the times of `Plan.passes`, as from
        `measured_by_all`."""
        measured = [[each.seconds for each in row] for row in times]
        compiled = [[each.compile_seconds for each in row] for row in times]
        predicted = [self._predicted(update) for update in updates]
        expected = None if self._fit.r_squared is None else self._slowest(updates, predicted)
        slowest = self._slowest(updates, measured)
        mean = sum(
            each * batch.degree / len(update.plan.ranks)
            for update, seconds in zip(updates, measured, strict=True)
            for batch, each in zip(update.plan.passes, seconds, strict=True)
        )
        self._steps += 1
        # In the first step devices are warmed up.
        if self._steps > 1:
            self._fit.add(self._telling(updates, times, predicted))
        return PassMetrics(
            seconds=round(slowest, 6),
            expected_seconds=None if expected is None else round(expected, 6),
            compile_seconds=round(self._slowest(updates, compiled), 6),
            imbalance=slowest / mean if mean > 0 else 1.0,
            r_squared=self._fit.r_squared,
        )

    def _predicted(self, update: PlannedUpdate) -> list[float]:
        """The seconds of its passes by the model."""
        passes = [(update.lengths_of(batch), batch.degree) for batch in update.plan.passes]
        return self._fit.model.seconds_of_each(passes)

    def _slowest(self, updates: Sequence[PlannedUpdate], seconds: Sequence[Sequence[float]]) -> float:
        """Seconds until the last rank is through, over all updates."""
        total = 0.0
        for update, each in zip(updates, seconds, strict=True):
            ranks = [[each[number] for number in numbers] for numbers in pass_numbers(update.plan)]
            if self._in_step:
                total += sum(max(row) for row in zip(*ranks, strict=True))
            else:
                total += max(map(sum, ranks), default=0.0)
        return total

    def _telling(
        self,
        updates: Sequence[PlannedUpdate],
        times: Sequence[Sequence[PassTime]],
        predicted: Sequence[Sequence[float]],
    ) -> list[MeasuredPass]:
        """The passes whose seconds are theirs: nothing was compiled in them. Where ranks wait for each other
        in every pass, all take as long as the costliest one that runs at the same time, as `predicted`, or
        compiles then."""
        telling: list[MeasuredPass] = []
        for update, each, costs in zip(updates, times, predicted, strict=True):
            passes = update.plan.passes
            rows: list[tuple[int, ...]] = [(number,) for number in range(len(passes))]
            if self._in_step:
                rows = list(zip(*pass_numbers(update.plan), strict=True))
            for row in rows:
                if any(each[number].compile_seconds > 0 for number in row):
                    continue
                number = max(row, key=costs.__getitem__)
                lengths = update.lengths_of(passes[number])
                telling.append(MeasuredPass(passes[number].degree, lengths, each[number].seconds))
        return telling


def shape_of(model: Any, heads: Heads, tensor: int = 1) -> ModelShape:
    """What the costs of a Hugging Face model follow from, on each of `tensor` ranks that compute every layer
    together."""
    own = heads.part(tensor)
    text = model.config.get_text_config()
    used = _used_experts(text)
    looked_up = model.get_input_embeddings().weight
    # Weights of the head may be those of the input embedding, which nothing else is multiplied with.
    parameters = sum(each.numel() for each in model.get_output_embeddings().parameters()) + sum(
        each.numel() * (used if _of_experts(name, each) else 1.0)
        for name, each in model.get_decoder().named_parameters()
        if each is not looked_up
    )
    return ModelShape(
        layers=text.num_hidden_layers,
        parameters=round(parameters / tensor),
        query_width=own.query * own.size,
        key_value_width=own.shared * own.size,
    )


def _used_experts(text: Any) -> float:
    """The share of a layer's experts that a token uses; 1 where there are none."""
    experts = expert_count(text.to_dict())
    used = next((found for name in _PER_TOKEN if (found := getattr(text, name, None))), experts)
    return used / experts if experts else 1.0


def _of_experts(name: str, parameter: Tensor) -> bool:
    """Whether a decoder's parameter belongs to experts. Some families stack them in modules of other names;
    nothing else in a decoder that the trainer takes has three dimensions."""
    return ".experts." in name or parameter.ndim == 3


def pass_numbers(plan: Plan) -> list[list[int]]:
    """For each rank where its passes stand in `Plan.passes`."""
    of_group: dict[tuple[int, int], list[int]] = {}
    for number, batch in enumerate(plan.passes):
        of_group.setdefault((batch.first, batch.degree), []).append(number)
    found: list[list[int]] = []
    for batches in plan.ranks:
        # A group's passes come in one order on all of its ranks.
        left = {group: iter(numbers) for group, numbers in of_group.items()}
        found.append([next(left[batch.first, batch.degree]) for batch in batches])
    return found


def seconds_of_passes(
    timed: Sequence[Timed], counts: Sequence[int], in_step: bool, recomputed: ActivationCheckpointing
) -> list[list[PassTime]]:
    """For each update the times of its passes, of which there are `counts`: forward and backward together.
    A forward pass of another kind has a `why` and is left out.

    Where ranks are not in step, they wait in the backward part of an update's last pass, for all gradients.
    Its seconds are therefore made from its forward part, by what backward parts took elsewhere; where there
    are none, by the products that they have to make with activations `recomputed` so."""
    parts = [
        [each for each in timed if each.event == "forward" and "why" not in each.extra],
        [each for each in timed if each.event == "backward"],
    ]
    forward, backward = ([each.seconds for each in found] for found in parts)
    if not len(forward) == len(backward) == sum(counts):
        raise ValueError(
            f"{sum(counts)} passes were run, and {len(forward)} forward and {len(backward)} backward timed"
        )
    compiled = [a.compile_seconds + b.compile_seconds for a, b in zip(*parts, strict=True)]
    if not in_step:
        last = {end - 1 for end, count in zip(accumulate(counts), counts, strict=True) if count}
        others = [number for number, both in enumerate(compiled) if number not in last and both == 0]
        spent = sum(forward[number] for number in others)
        ratio = sum(backward[number] for number in others) / spent if spent > 0 else _BACKWARD[recomputed]
        backward = [forward[n] * ratio if n in last else seconds for n, seconds in enumerate(backward)]
    passes = iter([PassTime(a + b, c) for a, b, c in zip(forward, backward, compiled, strict=True)])
    return [[next(passes) for _ in range(count)] for count in counts]


def measured_by_all(
    updates: Sequence[PlannedUpdate], own_times: Sequence[Sequence[PassTime]], tensor: int = 1
) -> list[list[PassTime]]:
    """For each update the times of all its passes, in seconds of the rank that took least. `own_times` are
    those of this rank's passes, in the order of the plan; an idle pass after them, in which ranks meet, is in
    no plan and left out. `tensor` ranks each make the same passes. All ranks call it together."""
    rank = dist.get_rank() // tensor
    # The least of each: seconds, and less than 0 for those in which something was compiled.
    known = [torch.full((len(update.plan.passes), 2), torch.inf, dtype=torch.float64) for update in updates]
    for update, own, found in zip(updates, own_times, known, strict=True):
        for number, time in zip(pass_numbers(update.plan)[rank], own, strict=False):
            found[number, 0], found[number, 1] = time.seconds, -time.compile_seconds
    # A step without groups has no updates, and torch joins one tensor at least.
    together = torch.cat([torch.empty(0, 2, dtype=torch.float64), *known])
    if dist.get_world_size() > 1:
        dist.all_reduce(together, op=dist.ReduceOp.MIN)
    everywhere = iter(together.tolist())
    return [
        [PassTime(seconds, abs(compiled)) for seconds, compiled in islice(everywhere, len(found))]
        for found in known
    ]
