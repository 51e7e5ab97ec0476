"""A rehearsal, in which passes are compiled before the first step: it changes nothing, and leaves nothing to
be compiled."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from rljob_runtime.trainer.adapter import exported_name
from rljob_runtime.trainer.checkpoint_tensors import SavedPolicy
from rljob_runtime.trainer.micro_batch_work import MicroBatchWork, WorkMaker
from rljob_runtime.trainer.rank import TrainerWorker
from rljob_runtime.trainer.step_metrics import StepMetrics
from tests.support.runtime.compiling import compiled_quickly
from tests.support.runtime.rank_processes import RankProcesses
from tests.support.runtime.trained_steps import (
    ALGORITHMS,
    Weights,
    assert_same,
    settings,
    steps_of,
    train,
)
from tests.support.runtime.trainer_ranks import groups, model_folder, trainer_job, worker

pytestmark = pytest.mark.timeout(300)
"""More than `RankProcesses` waits for a result."""

RANKS = 4
EVERY_PASS = ALGORITHMS["clip and kl"] | ALGORITHMS["decoupled, sequence-mean"]
"""Passes with gradients and without any, of the policy and of the reference."""


@pytest.mark.parametrize(
    ("count", "hold", "sharing"),
    [(2, False, "none"), (2, True, "none"), (2, True, "hybrid"), (3, False, "hybrid")],
)
def test_a_rehearsal_changes_nothing(
    ranks: RankProcesses, tmp_path: Path, count: int, hold: bool, sharing: str
) -> None:
    """Of three ranks the last one is in no group of two, and takes part all the same."""
    folder = model_folder(trainer_job(), tmp_path / "model")
    changes = settings(ALGORITHMS["clip and kl"], 64, compute={"holdWeights": hold})
    changes["parallel"]["contextParallel"] = {sharing: {}}
    plain = ranks.run(count, train, folder, changes)[0]
    assert_same(plain, ranks.run(count, train, folder, changes, 2, True)[0])


def _degrees_rehearsed(rank: int, world_size: int, store: Path, folder: Path) -> list[int]:
    """How many ranks share each pass of a rehearsal, as this one sees it."""
    made: list[int] = []
    untrained = WorkMaker.untrained

    def watched(maker: WorkMaker, lengths: Sequence[int], degree: int = 1) -> MicroBatchWork:
        work = untrained(maker, lengths, degree)
        made.append(1 if work.shard is None else work.shard.members.degree)
        return work

    changes = settings(ALGORITHMS["clip and kl"], 64)
    changes["parallel"]["contextParallel"] = {"hybrid": {}}
    with (
        pytest.MonkeyPatch.context() as patch,
        worker(trainer_job(**changes), folder, rank, world_size, store) as trainer,
    ):
        patch.setattr(WorkMaker, "untrained", watched)
        trainer._rehearse()
    return made


def test_passes_that_ranks_share_are_rehearsed(ranks: RankProcesses, tmp_path: Path) -> None:
    folder = model_folder(trainer_job(), tmp_path / "model")
    # The last rank is idle in the second pass, which goes by the same function.
    assert ranks.run(3, _degrees_rehearsed, folder) == [[1, 2], [1, 2], [1, 1, 1]]


@pytest.mark.parametrize(
    ("compiled", "own_device", "expected"), [(True, True, 1), (True, False, 0), (False, True, 0)]
)
def test_passes_are_rehearsed_where_they_are_compiled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, compiled: bool, own_device: bool, expected: int
) -> None:
    made: list[TrainerWorker] = []
    monkeypatch.setattr(TrainerWorker, "_rehearse", lambda rank: made.append(rank))
    folder = model_folder(trainer_job(), tmp_path / "model")
    job = trainer_job(compute={"compile": compiled})
    with worker(job, folder, own_device=own_device):
        assert len(made) == expected


@dataclass(frozen=True)
class CompiledSteps:
    """Two steps after a rehearsal."""

    seconds: float
    """In which they compiled something."""
    why: list[str]
    trained: tuple[list[StepMetrics], Weights]
    open_numbers: set[str]
    """As of `compiled_quickly`."""


def _compiled_in_steps(
    rank: int, world_size: int, store: Path | None, folder: Path, changes: dict[str, Any]
) -> CompiledSteps:
    job = trainer_job(**changes, ranks=world_size)
    with (
        pytest.MonkeyPatch.context() as patch,
        compiled_quickly() as open_numbers,
        worker(job, folder, rank, world_size, store, own_device=True) as trainer,
    ):
        rehearsed: float = trainer._compilations()
        assert rehearsed > 0
        why: list[str] = []
        patch.setattr(trainer._compilations, "why", partial(_kept, why, trainer._compilations.why))
        metrics = [
            trainer.train_step(step, step, groups(6, seed=step, version=step) if rank == 0 else None)
            for step in range(2)
        ]
        weights = {name: value.float().numpy() for name, value in trainer.weights()}
        return CompiledSteps(trainer._compilations() - rehearsed, why, (metrics, weights), open_numbers)


def _kept(told: list[str], why: Callable[[], list[str]]) -> list[str]:
    told += (found := why())
    return found


@pytest.mark.parametrize(
    ("count", "learned", "parallel"),
    [
        (1, EVERY_PASS, {}),
        (2, EVERY_PASS, {"contextParallel": {"hybrid": {}}}),
        # Pairs split layers, and share samples that are longer.
        (4, {}, {"contextParallel": {"hybrid": {}}, "tensorParallel": 2, "maxTokensPerMicroBatch": 40}),
    ],
    ids=["alone", "shared", "shared by tensor groups"],
)
def test_steps_compile_nothing_that_was_not_rehearsed(
    ranks: RankProcesses, tmp_path: Path, count: int, learned: dict[str, Any], parallel: dict[str, Any]
) -> None:
    """Of one rank and shared. They train what one rank trains whose layers are not compiled. Numbers that a
    model's modules have are what they are, also where the modules are sharded."""
    # As wide as a full pass has tokens, which are two sizes nevertheless.
    changes = settings(learned, 64, model={"hiddenSize": 64})
    folder = model_folder(trainer_job(**changes), tmp_path / "model")
    plain = ranks.run(1, train, folder, changes)[0]
    changes["compute"] = {"compile": True}
    changes["parallel"] |= parallel
    for found in ranks.run(count, _compiled_in_steps, folder, changes):
        assert (found.seconds, found.why) == (0.0, [])
        assert_same(found.trained, plain)
        assert found.open_numbers == set()


def _rehearsed_where_one_compiles(rank: int, world_size: int, store: Path, folder: Path) -> int:
    """How many rehearsals a rank of two made, of which the first alone compiles."""
    made: list[TrainerWorker] = []
    job = trainer_job(compute={"compile": rank == 0})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TrainerWorker, "_rehearse", lambda rank: made.append(rank))
        with worker(job, folder, rank, world_size, store, own_device=True):
            return len(made)


def test_no_rank_rehearses_where_one_does_not_compile(ranks: RankProcesses, tmp_path: Path) -> None:
    folder = model_folder(trainer_job(), tmp_path / "model")
    assert ranks.run(2, _rehearsed_where_one_compiles, folder) == [0, 0]


ADAPTED: dict[str, Any] = {
    "adapter": {"rank": 4, "alpha": 8, "targetModules": ["v_proj", "down_proj"]},
    "model": {"headDim": 32, "layers": 1},
    "rollout": {"engine": {"vllm": {}}},
}


def _with_an_adapter(
    rank: int, world_size: int, store: Path, folder: Path, changes: dict[str, Any]
) -> tuple[Any, float, set[str]]:
    """What two steps train whose layers are compiled, the seconds in which they compiled something after the
    rehearsal, and what the tensors of a checkpoint are called."""
    job = trainer_job(**changes, ranks=world_size)
    with compiled_quickly(), worker(job, folder, rank, world_size, store, own_device=True) as trainer:
        rehearsed: float = trainer._compilations()
        trained = steps_of(trainer, 2)
        seconds = trainer._compilations() - rehearsed
        saved = trainer.save_checkpoint(folder.parent / "checkpoints", 2, b"")
        return trained, seconds, set(SavedPolicy(saved).layout)


@pytest.mark.parametrize("parallel", [{"contextParallel": {"hybrid": {}}}, {"tensorParallel": 2}], ids=str)
def test_layers_with_an_adapter_are_compiled_with_it_and_without(
    ranks: RankProcesses, tmp_path: Path, parallel: dict[str, Any]
) -> None:
    """The reference is the same model without it. They train what layers train that are not compiled, and are
    saved under the same names."""
    changes = settings(ALGORITHMS["clip and kl"], 64, **ADAPTED)
    folder = model_folder(trainer_job(**changes), tmp_path / "model")
    plain = ranks.run(1, train, folder, changes)[0]
    changes["parallel"] |= parallel
    assert plain[0][1].kl > 1e-6
    found = ranks.run(2, _with_an_adapter, folder, changes | {"compute": {"compile": True}})
    assert [seconds for _, seconds, _ in found] == [0.0] * 2
    trained, _, saved = found[0]
    assert_same(trained, plain)
    assert {exported_name(name) for name in saved} == plain[1].keys()
