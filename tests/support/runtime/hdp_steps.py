"""Trainer steps with given plans, in any number format, and what their gradients are."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from rljob_runtime.parallel.hdp_plan import Plan, PlannedBatch
from rljob_runtime.trainer.step_metrics import StepMetrics
from tests.support.runtime.trainer_ranks import groups, trainer_job

Kind = Literal["allGather", "ulysses"]
Gradients = dict[str, NDArray[Any]]


@dataclass(frozen=True)
class Case:
    """A step of `batches` updates with three groups each."""

    folder: Path
    """Of the model."""
    plans: tuple[Plan, ...] = ()
    """Of each batch; of one rank alone where there are none."""
    attention: Kind = "allGather"
    dtype: str = "float64"
    algorithm: dict[str, Any] = field(default_factory=dict)
    batches: int = 1
    recompute: bool = False
    seed: int = 0
    longest: int = 40


def lengths(case: Case) -> list[list[int]]:
    """Tokens of the samples of each batch, in the order of a plan's indices."""
    made = groups(3 * case.batches, case.seed, longest=case.longest)
    return [
        [
            len(group.prompt) + len(sample.tokens)
            for group in made[start : start + 3]
            for sample in group.samples
            if sample.failure is None
        ]
        for start in range(0, len(made), 3)
    ]


def random_plan(samples: int, world_size: int, rng: np.random.Generator) -> Plan:
    """A plan with samples in passes of random aligned groups, of random degrees."""
    degrees = [2**e for e in range(world_size.bit_length()) if 2**e <= world_size]
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


def take_step(rank: int, world_size: int, store: Path, case: Case) -> tuple[StepMetrics, list[Gradients]]:
    """Train the step on this rank; its metrics, and the whole gradients of each update."""
    import torch
    import torch.distributed as dist

    from rljob_runtime.trace.record.event_log import EventLog
    from rljob_runtime.trainer.context_parallel import Sharing
    from rljob_runtime.trainer.distribution import Distribution
    from rljob_runtime.trainer.hdp_attention import Method
    from rljob_runtime.trainer.hdp_groups import HdpGroups
    from rljob_runtime.trainer.model import load_policy
    from rljob_runtime.trainer.phases import Phases
    from rljob_runtime.trainer.sharding import shard
    from rljob_runtime.trainer.share import share_outlines
    from rljob_runtime.trainer.step import StepRunner

    dist.init_process_group(
        "gloo", store=dist.FileStore(str(store), world_size), rank=rank, world_size=world_size,
        timeout=timedelta(seconds=60),
    )  # fmt: skip
    cpu, dtype = torch.device("cpu"), getattr(torch, case.dtype)
    master = torch.float64 if dtype == torch.float64 else torch.float32

    def model(recompute: bool) -> Any:
        policy = load_policy(case.folder, Distribution(), master, recompute)
        if dtype == torch.float64:
            exact_norms(policy.model)
        return shard(policy, cpu, dtype)

    job = trainer_job(case.algorithm, schedule={"promptsPerBatch": 3, "batchesPerStep": case.batches})
    policy = model(case.recompute)
    reference = model(False).requires_grad_(False) if "kl" in case.algorithm else None
    optimizer = _recording(policy, job.spec.training.optimizer)
    sharing = None
    if case.plans:
        left = list(case.plans)
        sharing = Sharing(
            lambda items: left.pop(0),
            HdpGroups(world_size, cpu, "gloo", timedelta(seconds=60)),
            lambda degree: Method(case.attention),
        )
    phases = Phases(EventLog(None, rank, f"trainer-{rank}", "trainer"), None)
    runner = StepRunner(job, policy, reference, optimizer, cpu, phases, sharing=sharing)
    made = groups(3 * case.batches, case.seed, longest=case.longest) if rank == 0 else None
    outlines = share_outlines(made)
    assert outlines is not None
    metrics = runner.run(0, 0, outlines, made or ())
    return metrics, optimizer.gradients if rank == 0 else []


def exact_norms(model: Any) -> None:
    """Let RMS norms compute in the model's own format; transformers' compute in float32."""
    import types

    import torch

    def forward(self: Any, hidden: torch.Tensor) -> torch.Tensor:
        scale = torch.rsqrt(hidden.square().mean(-1, keepdim=True) + _epsilon(self))
        weight = 1.0 + self.weight if "Gemma" in type(self).__name__ else self.weight
        normed: torch.Tensor = hidden * scale * weight
        return normed

    for module in model.modules():
        if type(module).__name__.endswith("RMSNorm"):
            module.forward = types.MethodType(forward, module)


def _epsilon(norm: Any) -> float:
    return float(getattr(norm, "variance_epsilon", getattr(norm, "eps", 1e-6)))


def _recording(policy: Any, settings: Any) -> Any:
    """An optimizer that keeps the gradients of its updates."""
    from rljob_runtime.trainer.optim import ScheduledAdamW

    class Recording(ScheduledAdamW):
        gradients: list[Gradients] = []

        def clip(self) -> float:
            found = {}
            for name, parameter in policy.named_parameters():
                gradient = parameter.grad
                whole = gradient.full_tensor() if hasattr(gradient, "full_tensor") else gradient
                found[name] = whole.detach().double().numpy().copy()
            self.gradients.append(found)
            return super().clip()

    return Recording(policy.parameters(), settings, 10)


def worst(found: Sequence[Gradients], expected: Sequence[Gradients]) -> float:
    """Largest relative difference of a parameter's gradient, by norms."""
    assert len(found) == len(expected) > 0
    differences = []
    for one, other in zip(found, expected, strict=True):
        assert one.keys() == other.keys()
        differences += [
            float(np.linalg.norm(one[name] - value) / np.linalg.norm(value)) for name, value in other.items()
        ]
    return max(differences)
