"""How a number of accelerators is divided between the trainer and the engines of a new job."""

from collections.abc import Sequence
from dataclasses import dataclass

from rljob_runtime.authoring.fields import Field, Fields

_TRAINER = "spec.pools.trainer"
_FAST = "spec.pools.fastRollout"
PER_WORKER = 16
"""Most accelerators of one worker."""


@dataclass(frozen=True)
class PoolSizes:
    """Workers of the two pools, and accelerators of each worker."""

    trainers: int
    trainer_accelerators: int
    engines: int
    engine_accelerators: int

    @property
    def total(self) -> int:
        """Accelerators of both pools."""
        return self.trainers * self.trainer_accelerators + self.engines * self.engine_accelerators


def divide(accelerators: int, per_node: int, per_engine: int) -> PoolSizes:
    """Pools of at most `accelerators`, and of one trainer and one engine at least: half of the accelerators,
    rounded down, train, as whole nodes of `per_node` where that is more than one; the others generate, by
    `per_engine` to an engine, and what makes no whole engine trains. All three are 1 or more; `per_node` and
    `per_engine` at most `PER_WORKER`."""
    half = max(1, min(accelerators // 2, accelerators - per_engine))
    trainers, each = (half // per_node, per_node) if half > per_node else (1, half)
    engines = max(1, (accelerators - trainers * each) // per_engine)
    if trainers == 1:
        each = max(each, min(per_node, accelerators - engines * per_engine))
    return PoolSizes(trainers, each, engines, per_engine)


def on_cpus(workers: int) -> PoolSizes:
    """Pools of so many workers, 2 or more, that compute on CPUs: one trains, the others generate."""
    return PoolSizes(1, 1, max(1, workers - 1), 1)


def pool_fields(sizes: PoolSizes, comments: Sequence[str]) -> Fields:
    """The fields of two pools; `comments` on workers and accelerators of the trainer, then of the engines."""
    values = (sizes.trainers, sizes.trainer_accelerators, sizes.engines, sizes.engine_accelerators)
    names = [f"{pool}.{name}" for pool in (_TRAINER, _FAST) for name in ("replicas", "acceleratorsPerWorker")]
    return {name: Field(value, comment) for name, value, comment in zip(names, values, comments, strict=True)}
