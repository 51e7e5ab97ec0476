"""Trainer steps with given plans, in any number format, and what their gradients are."""

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any, Literal, Protocol
from unittest.mock import patch

import numpy as np
import pytest
from numpy.typing import NDArray

from rljob_api.adapter import Adapter
from rljob_api.model import ActivationCheckpointing
from rljob_runtime.parallel.hdp_plan import Plan, PlannedBatch
from rljob_runtime.parallel.micro_batches import Item
from rljob_runtime.trainer.step_metrics import StepMetrics
from tests.support.runtime.trainer_ranks import groups, made_up, taught, trainer_job

Kind = Literal["allGather", "ulysses"]
Gradients = dict[str, NDArray[Any]]


class Plans(Protocol):
    """What plans the batches of a step, on each data rank for itself."""

    def __call__(self, items: Sequence[Item], world_size: int, rank: int) -> Plan: ...


@dataclass
class FirstShare:
    """The first `degree` ranks share every sample, in one pass."""

    degree: int

    def __call__(self, items: Sequence[Item], world_size: int, rank: int) -> Plan:
        shared = PlannedBatch(0, self.degree, tuple(range(len(items))))
        return Plan(tuple((shared,) if each < self.degree else () for each in range(world_size)), 0.0)


@dataclass
class Random:
    """Random aligned groups of random degrees have samples by chance; `differing` is a rank that plans
    otherwise."""

    seed: int
    differing: int | None = None
    largest: int | None = None
    """Degree; None: as many ranks as there are."""

    def __call__(self, items: Sequence[Item], world_size: int, rank: int) -> Plan:
        seed = self.seed + (rank == self.differing)
        return random_plan(len(items), world_size, np.random.default_rng([seed, len(items)]), self.largest)


def random_plan(samples: int, world_size: int, rng: np.random.Generator, largest: int | None = None) -> Plan:
    """A plan with samples in passes of random aligned groups, of random degrees up to `largest`."""
    most = min(world_size, largest or world_size)
    degrees = [2**e for e in range(most.bit_length())]
    passes: list[tuple[int, int, list[int]]] = []
    for sample in rng.permutation(samples).tolist():
        degree = int(rng.choice(degrees))
        first = degree * int(rng.integers(world_size // degree))
        same = [found for found in passes if found[:2] == (first, degree)]
        if same and rng.random() < 0.6:
            same[int(rng.integers(len(same)))][2].append(sample)
        else:
            passes.append((first, degree, [sample]))
    passes.sort(key=lambda found: -found[1])
    made = [PlannedBatch(first, degree, tuple(sorted(members))) for first, degree, members in passes]
    ranks = (
        tuple(each for each in made if each.first <= rank < each.first + each.degree)
        for rank in range(world_size)
    )
    return Plan(tuple(ranks), 0.0)


@dataclass(frozen=True)
class Case:
    """A step of `batches` updates with three groups each."""

    folder: Path
    """Of the model."""
    plans: Plans | None = None
    """None: ranks share nothing."""
    attention: Kind = "allGather"
    dtype: str = "float64"
    algorithm: dict[str, Any] = field(default_factory=dict)
    batches: int = 1
    recompute: bool = False
    compiled: bool = False
    """Whether layers are, without a compiler of machine code."""
    seed: int = 0
    longest: int = 40
    pass_tokens: int = 64
    """A pass takes so many, where ranks share nothing."""
    tensor: int = 1
    """Ranks of a tensor group."""
    copy: int | None = None
    """Ranks that hold a copy of the model together; None is all."""
    teacher: Path | None = None
    """Folder of the model that `algorithm` learns from."""
    served: bool = False
    """Samples have the log-probabilities of a served teacher, which are made up."""
    accelerator: Literal["cpu", "nvidia"] = "cpu"
    """What the ranks run on; a rank has the device of its number."""
    experts: Literal["grouped", "eager"] = "grouped"
    """How those of a model that has any are multiplied."""
    adapter: dict[str, Any] | None = None
    """`training.adapter`, which is trained in place of the model; neither of its matrices is 0."""
    without_others: bool = False
    """Leave out what queries of other ranks add to the gradients of a rank's keys and values."""

    @property
    def groups(self) -> tuple[object, ...]:
        """What the groups of ranks depend on that models are spread over: those of two cases in which it is
        equal are made alike, and in one order."""
        return self.tensor, self.copy, "kl" in self.algorithm, self.teacher is None


def take_step(rank: int, world_size: int, store: Path, case: Case) -> tuple[StepMetrics, list[Gradients]]:
    """Train the step on this rank; its metrics, and on rank 0 the whole gradients of each update."""
    from tests.support.runtime.compiling import compiled_quickly

    with compiled_quickly() if case.compiled else nullcontext():
        return _take_step(rank, world_size, store, case)


def _take_step(rank: int, world_size: int, store: Path, case: Case) -> tuple[StepMetrics, list[Gradients]]:
    import torch
    from transformers.integrations import moe

    from rljob_runtime.devices import Devices
    from rljob_runtime.parallel.cost_model import CostModel
    from rljob_runtime.parallel.rank_layout import RankLayout
    from rljob_runtime.trace.record.event_log import EventLog
    from rljob_runtime.trainer import hdp_attention
    from rljob_runtime.trainer.adapter import BaseModel, add_adapter
    from rljob_runtime.trainer.attention_choice import Heads, choose_attention
    from rljob_runtime.trainer.context_parallel import Sharing
    from rljob_runtime.trainer.group_scatter import broadcast_outlines
    from rljob_runtime.trainer.hdp_attention import Method
    from rljob_runtime.trainer.hdp_collectives import gathered_copies
    from rljob_runtime.trainer.hdp_groups import HdpGroups
    from rljob_runtime.trainer.model import load_policy
    from rljob_runtime.trainer.pass_costs import PassCosts
    from rljob_runtime.trainer.phases import Phases
    from rljob_runtime.trainer.sampling_distribution import Distribution
    from rljob_runtime.trainer.sharding import Sharding, shard
    from rljob_runtime.trainer.step import StepRunner

    devices, dtype = Devices.of(case.accelerator), getattr(torch, case.dtype)
    device = devices.device(rank)
    join(rank, world_size, store, "gloo" if device.type == "cpu" else f"cpu:gloo,cuda:{devices.backend}")

    def model(recompute: bool, folder: Path = case.folder) -> Any:
        master = torch.promote_types(dtype, torch.float32)
        again: ActivationCheckpointing = "full" if recompute else "none"
        policy = load_policy(folder, Distribution(), master, again, case.experts)
        if adapter is not None and folder == case.folder:
            add_adapter(folder, policy.model, adapter, seed=0, weights=True)
            without_zeros(policy.model)
        if dtype == torch.float64:
            compute_as_given(policy.model)
        if case.compiled:
            policy.tune(2**20, compiled=True, shared=case.plans is not None)
        return shard(policy, device, dtype, Sharding(case.copy, tensor=case.tensor))

    schedule = {"promptsPerBatch": 3, "batchesPerStep": case.batches}
    parallel = {"tensorParallel": case.tensor, "maxTokensPerMicroBatch": case.pass_tokens}
    job = trainer_job(case.algorithm, schedule=schedule, parallel=parallel, ranks=world_size)
    adapter = Adapter.model_validate(case.adapter) if case.adapter is not None else None
    policy = model(case.recompute)
    reference = None
    if "kl" in case.algorithm:
        reference = model(False).requires_grad_(False) if adapter is None else BaseModel(policy)
    teacher = model(False, case.teacher).requires_grad_(False) if case.teacher is not None else None
    optimizer = _recording(policy, job.spec.training.optimizer)
    layout = RankLayout(rank, world_size, case.tensor)
    heads = Heads.of(policy.model)
    choice = choose_attention(device, dtype, heads.part(case.tensor), shared=case.plans is not None)
    sharing = None
    if case.plans is not None:
        plans = case.plans
        sharing = Sharing(
            lambda items: plans(items, layout.data_ranks, layout.data_rank),
            HdpGroups(layout, layout.data_ranks, device, devices.backend, timedelta(seconds=60)),
            lambda degree: Method(case.attention, choice.name),
        )
    phases = Phases(EventLog(None, rank, f"trainer-{rank}", "trainer"), None)
    prior = CostModel(per_pass=0.0, per_token=1.0, per_square=0.0)
    costs = PassCosts(prior, world_size, in_step=sharing is None)
    runner = StepRunner(
        job, policy, reference, optimizer, device, phases, costs, choice.lay_out, sharing, teacher=teacher
    )
    made = groups(3 * case.batches, case.seed, longest=case.longest) if rank == 0 else None
    if made is not None and case.served:
        made = [taught(group, made_up) for group in made]
    outlines = broadcast_outlines(made)
    assert outlines is not None
    without = (
        patch.object(hdp_attention, "gathered", gathered_copies) if case.without_others else nullcontext()
    )
    # torch's own kernel for groups does not take float64.
    loops = patch.object(moe, "_can_use_grouped_mm", lambda *_: False)
    with without, loops if dtype == torch.float64 else nullcontext():
        metrics = runner.run(0, 0, outlines, made or ())
    return metrics, optimizer.gradients if rank == 0 else []


def join(rank: int, world_size: int, store: Path, backend: str = "gloo") -> None:
    """Meet the other ranks."""
    import torch.distributed as dist

    dist.init_process_group(
        backend, store=dist.FileStore(str(store), world_size), rank=rank, world_size=world_size,
        timeout=timedelta(seconds=200),
    )  # fmt: skip


def without_zeros(model: Any) -> None:
    """Give an adapter a B that is not 0, as it is at the beginning, where A has no gradient."""
    import torch

    generator = torch.Generator().manual_seed(1)
    for name, parameter in sorted(model.named_parameters()):
        if ".lora_B." in name:
            parameter.data = 0.1 * torch.randn(parameter.shape, generator=generator)


def compute_as_given(model: Any) -> None:
    """Let a model compute in float64 where transformers computes in float32: RMS norms and routers."""
    import types
    from functools import partial

    import torch

    for parameter in model.parameters():
        # transformers keeps some in float32, whatever it is asked for.
        parameter.data = parameter.data.double()

    def forward(self: Any, hidden: torch.Tensor) -> torch.Tensor:
        epsilon = getattr(self, "variance_epsilon", getattr(self, "eps", 1e-6))
        scale = torch.rsqrt(hidden.square().mean(-1, keepdim=True) + epsilon)
        normed: torch.Tensor = hidden * scale
        if getattr(self, "weight", None) is None:
            return normed
        kind = type(self).__name__
        above_one = "Gemma" in kind and not kind.startswith(("Gemma3n", "Gemma4"))
        weight: torch.Tensor = self.weight
        return normed * (1.0 + weight if above_one else weight)

    for module in model.modules():
        if type(module).__name__.endswith("RMSNorm"):
            module.forward = types.MethodType(forward, module)
        elif type(module).__name__.endswith(("Router", "Ernie4_5_MoeAttention")):
            # The second one rotates in float32.
            module.forward = partial(without_float32, module.forward)


def without_float32(forward: Any, *arguments: Any, **options: Any) -> Any:
    """What `forward` computes, its numbers in the format that they are given in."""
    import torch
    from torch.overrides import TorchFunctionMode

    class Given(TorchFunctionMode):
        def __torch_function__(self, called: Any, types: Any, given: Any = (), named: Any = None) -> Any:
            named = {**(named or {})}
            if called is torch.Tensor.float or any(each is torch.float32 for each in given):
                return given[0]
            if named.get("dtype") == torch.float32:
                del named["dtype"]
            return called(*given, **named)

    with Given():
        return forward(*arguments, **options)


def _recording(policy: Any, settings: Any) -> Any:
    """An optimizer that keeps the gradients of its updates."""
    from rljob_runtime.trainer.optim import ScheduledAdamW

    class Recording(ScheduledAdamW):
        gradients: list[Gradients] = []

        def clip(self) -> None:
            found = {}
            for name, parameter in policy.named_parameters():
                if not parameter.requires_grad:
                    continue
                gradient = parameter.grad
                whole = gradient.full_tensor() if hasattr(gradient, "full_tensor") else gradient
                found[name] = whole.detach().double().cpu().numpy().copy()
            self.gradients.append(found)
            super().clip()

    trained = [each for each in policy.parameters() if each.requires_grad]
    return Recording(trained, settings, 10)


def worst(found: Sequence[Gradients], expected: Sequence[Gradients]) -> float:
    """Largest relative difference of a parameter's gradient, by norms; NaN where any is no number."""
    assert len(found) == len(expected) > 0
    differences = []
    for one, other in zip(found, expected, strict=True):
        assert one.keys() == other.keys()
        differences += [
            float(np.linalg.norm(one[name] - value) / np.linalg.norm(value)) for name, value in other.items()
        ]
    return float(np.max(differences))


def run_plans(rank: int, world_size: int, store: Path, count: int, seed: int) -> int:
    """Make the passes of `count` random plans, each with the collective calls of a layer, forward and
    backward; all ranks meet after each plan. How many passes this rank made."""
    import torch
    import torch.distributed as dist

    from rljob_runtime.parallel.rank_layout import RankLayout
    from rljob_runtime.trainer.hdp_collectives import exchanged, gathered
    from rljob_runtime.trainer.hdp_groups import HdpGroups

    join(rank, world_size, store)
    layout = RankLayout(rank, world_size)
    made = HdpGroups(layout, world_size, torch.device("cpu"), "gloo", timedelta(seconds=60))
    passes = 0
    for number in range(count):
        rng = np.random.default_rng([seed, number])
        plan = random_plan(int(rng.integers(1, 12)), world_size, rng)
        for each in plan.ranks[rank]:
            passes += 1
            if each.degree > 1:
                members = made.of(each.degree)
                local = torch.full((each.degree, 2), float(rank), requires_grad=True)
                found = exchanged(gathered(local, members).sum(0), members)
                found.sum().backward()  # type: ignore[no-untyped-call]
                expected = each.degree * each.first + sum(range(each.degree))
                assert found.eq(expected).all()
                assert local.grad is not None and local.grad.eq(each.degree).all()
        # As the reduction of an update.
        done = torch.tensor([number])
        dist.all_reduce(done, op=dist.ReduceOp.MIN)
        assert int(done) == number
    return passes


def assert_same_metrics(one: StepMetrics, other: StepMetrics, rel: float = 1e-6, near: float = 1e-7) -> None:
    """Of one step, trained in two ways: alike but for a part `rel`, or `near` in absolute terms."""
    assert (one.parity_max is None) == (other.parity_max is None)
    compared = () if one.parity_max is None else ("parity_max", "parity_mean")
    for name in (
        "loss",
        "policy_loss",
        "kl",
        "teacher_kl",
        "entropy",
        "grad_norm",
        "clip_fraction",
        *compared,
    ):
        assert getattr(one, name) == pytest.approx(getattr(other, name), rel=rel, abs=near), name
    assert one.importance_weight_mean == pytest.approx(other.importance_weight_mean, rel=rel)
    for name in ("tokens", "response_tokens", "samples", "failed"):
        assert getattr(one, name) == getattr(other, name), name
