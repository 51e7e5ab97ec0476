"""Checkpoints: exact, re-shardable, and whole whatever happens while one is written."""

import multiprocessing
import os
import random
import resource
import signal
import subprocess
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from rljob_runtime.trainer.checkpoint import CheckpointError, CheckpointUnreadable, newest, step_of
from tests.support.disks import fill, small_disk
from tests.support.runtime.rank_processes import RankProcesses
from tests.support.runtime.trainer_ranks import groups, model_folder, trainer_job, worker

pytestmark = pytest.mark.timeout(300)
"""More than `RankProcesses` waits for a result."""

RANKS = 2
TIED: dict[str, Any] = {"model": {"tieWordEmbeddings": True}}


def steps(trainer: Any, first: int, last: int) -> list[float]:
    """Losses of steps first..last-1."""
    return [
        trainer.train_step(step, step, groups(4, seed=step, version=step)).loss for step in range(first, last)
    ]


def draws() -> tuple[float, float, float]:
    return random.random(), float(np.random.rand()), float(torch.rand(1))


@pytest.mark.parametrize("changes", [{}, TIED], ids=["untied", "tied"])
def test_goes_on_exactly(tmp_path: Path, changes: dict[str, Any]) -> None:
    """Losses, learning rates and random numbers after a restart are those without one, bit for bit."""
    job = trainer_job({"kl": {}}, optimizer={"schedule": "cosine", "learningRate": 1e-3}, **changes)
    folder = model_folder(job, tmp_path / "model")
    with worker(job, folder) as trainer:
        steps(trainer, 0, 2)
        saved = trainer.save_checkpoint(tmp_path / "checkpoints", 2, b"where the driver stood")
        expected = (steps(trainer, 2, 5), trainer._optimizer.learning_rate, draws())
    with worker(job, folder) as trainer:
        assert trainer.load_checkpoint(saved) == b"where the driver stood"
        assert (steps(trainer, 2, 5), trainer._optimizer.learning_rate, draws()) == expected


@pytest.mark.parametrize("state_format", ["float32", "bfloat16"])
def test_one_before_the_first_update_changes_nothing(tmp_path: Path, state_format: str) -> None:
    """Of a job that is suspended before its first step, or whose first steps have nothing to learn from."""
    job = trainer_job(optimizer={"stateFormat": state_format})
    folder = model_folder(job, tmp_path / "model")
    with worker(job, folder) as trainer:
        expected = steps(trainer, 0, 3)
    with worker(job, folder) as trainer:
        saved = trainer.save_checkpoint(tmp_path / "checkpoints", 0, b"")
        assert steps(trainer, 0, 3) == expected
    with worker(job, folder) as trainer:
        trainer.load_checkpoint(saved)
        assert steps(trainer, 0, 3) == expected


def test_the_optimizers_settings_are_those_of_the_job_that_goes_on(tmp_path: Path) -> None:
    job = trainer_job(optimizer={"beta1": 0.5, "weightDecay": 0.0})
    folder = model_folder(job, tmp_path / "model")
    with worker(job, folder) as trainer:
        steps(trainer, 0, 1)
        saved = trainer.save_checkpoint(tmp_path / "checkpoints", 1, b"")
    other = trainer_job(optimizer={"beta1": 0.8, "beta2": 0.9, "weightDecay": 1.0, "epsilon": 1e-6})
    with worker(other, folder) as trainer:
        trainer.load_checkpoint(saved)
        [group] = trainer._optimizer.adamw.param_groups
        assert (group["betas"], group["weight_decay"], group["eps"]) == ((0.8, 0.9), 1.0, 1e-6)


def save_steps(
    rank: int, world_size: int, store: Path | None, folder: Path, root: Path, job: dict[str, Any]
) -> list[float]:
    with worker(trainer_job(**job), folder, rank, world_size, store) as trainer:
        steps(trainer, 0, 2)
        trainer.save_checkpoint(root, 2, b"state")
        return steps(trainer, 2, 4)


def load_steps(
    rank: int, world_size: int, store: Path | None, folder: Path, root: Path, job: dict[str, Any]
) -> tuple[bytes, list[float]]:
    with worker(trainer_job(**job), folder, rank, world_size, store) as trainer:
        found = newest(root)
        assert found is not None
        return trainer.load_checkpoint(found), steps(trainer, 2, 4)


@pytest.mark.parametrize("changes", [{}, TIED], ids=["untied", "tied"])
@pytest.mark.parametrize(("writers", "readers"), [(2, 1), (1, 2)])
def test_any_number_of_ranks_can_load(
    ranks: RankProcesses, tmp_path: Path, writers: int, readers: int, changes: dict[str, Any]
) -> None:
    folder = model_folder(trainer_job(**changes), tmp_path / "model")
    expected = ranks.run(writers, save_steps, folder, tmp_path / "checkpoints", changes)[0]
    state, losses = ranks.run(readers, load_steps, folder, tmp_path / "checkpoints", changes)[0]
    assert state == b"state"
    np.testing.assert_allclose(losses, expected, atol=1e-5)


def test_the_newest_are_kept(tmp_path: Path) -> None:
    job = trainer_job(checkpoint={"keep": 2})
    root = tmp_path / "checkpoints"
    assert newest(root) is None
    with worker(job, model_folder(job, tmp_path / "model")) as trainer:
        for step in (1, 2, 3):
            assert trainer.save_checkpoint(root, step, b"") == root / f"step_{step}"
        assert sorted(path.name for path in root.iterdir()) == ["latest", "step_2", "step_3"]
        trainer.load_checkpoint(root / "step_2")
        assert trainer.save_checkpoint(root, 3, b"again") == newest(root)
        assert trainer.load_checkpoint(root / "step_3") == b"again"
    assert sorted(path.name for path in root.iterdir()) == ["latest", "step_2", "step_3"]


def test_a_full_disk_leaves_the_last_checkpoint(tmp_path: Path) -> None:
    """One checkpoint of this model takes 0.5 MB."""
    job = trainer_job(checkpoint={"keep": 5})
    with (
        small_disk(tmp_path / "disk", megabytes=2) as disk,
        worker(job, model_folder(job, tmp_path / "model")) as trainer,
    ):
        steps(trainer, 0, 1)
        trainer.save_checkpoint(disk, 1, b"first")
        ballast = fill(disk, left=100_000)
        with pytest.raises(CheckpointError) as caught:
            trainer.save_checkpoint(disk, 2, b"second")
        ballast.unlink()
        message = str(caught.value)
        assert message.startswith(f"the checkpoint of step 2 could not be written to {disk} (")
        assert "step_1 before it is whole: make room, or set checkpoint.path to a larger disk" in message
        assert "\n" not in message
        assert sorted(path.name for path in disk.iterdir()) == ["latest", "step_1"]
        assert trainer.load_checkpoint(disk / "step_1") == b"first"
        assert trainer.save_checkpoint(disk, 2, b"second") == newest(disk)


def save_with_a_limit(rank: int, world_size: int, store: Path | None, folder: Path, root: Path) -> str:
    """Rank 1 cannot write files above 10 kB."""
    with worker(trainer_job(), folder, rank, world_size, store) as trainer:
        trainer.save_checkpoint(root, 1, b"")
        if rank == 1:
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, resource.RLIM_INFINITY))
        try:
            trainer.save_checkpoint(root, 2, b"")
        except CheckpointError as error:
            return str(error)
        return "no error"


def test_a_rank_that_cannot_write_fails_all(tmp_path: Path) -> None:
    folder = model_folder(trainer_job(), tmp_path / "model")
    # Of its own: the limit holds as long as a process does.
    with closing(RankProcesses(2)) as ranks:
        messages = ranks.run(2, save_with_a_limit, folder, tmp_path / "checkpoints")
    for message in messages:
        assert message.startswith("the checkpoint of step 2 could not be written")
    assert sorted(path.name for path in (tmp_path / "checkpoints").iterdir()) == ["latest", "step_1"]


def save_for_ever(folder: Path, root: Path, began: Any) -> None:
    job = trainer_job(checkpoint={"keep": 1})
    with worker(job, folder) as trainer:
        trainer.save_checkpoint(root, 0, b"0")
        began.set()
        for step in range(1, 1_000_000):
            trainer.save_checkpoint(root, step, str(step).encode())


def test_a_kill_at_any_moment_leaves_a_whole_checkpoint(tmp_path: Path) -> None:
    job = trainer_job()
    folder, root = model_folder(job, tmp_path / "model"), tmp_path / "checkpoints"
    context = multiprocessing.get_context("spawn")
    began = context.Event()
    process = context.Process(target=save_for_ever, args=(folder, root, began))
    process.start()
    assert began.wait(60)
    rng = random.Random(3)
    # Copies of the folder as it is at random moments stand for kills: starting a process for each is slow.
    copies = []
    for number in range(12):
        process.join(rng.uniform(0, 0.05))
        assert process.pid is not None
        os.kill(process.pid, signal.SIGSTOP)
        copy = tmp_path / f"copy-{number}"
        subprocess.run(["cp", "-a", str(root), str(copy)], check=True)
        os.kill(process.pid, signal.SIGCONT)
        copies.append(copy)
    process.kill()
    process.join()
    with worker(job, folder) as trainer:
        for copy in [*copies, root]:
            found = newest(copy)
            assert found is not None
            assert trainer.load_checkpoint(found) == str(step_of(found)).encode()
        assert trainer.save_checkpoint(root, 10**6, b"") == newest(root)
    assert [path.name for path in root.glob("*.tmp")] == []


def test_damaged_files_are_told(tmp_path: Path) -> None:
    """Whichever file it is that a disk or a copy has cut off, or that is another's."""
    job = trainer_job()
    with worker(job, model_folder(job, tmp_path / "model")) as trainer:
        saved = trainer.save_checkpoint(tmp_path / "checkpoints", 1, b"")
        for path in saved.iterdir():
            whole = path.read_bytes()
            for content in (whole[: len(whole) // 2], b"\xff" * len(whole)):
                path.write_bytes(content)
                if content != whole:
                    with pytest.raises(
                        CheckpointUnreadable, match=f"^{saved} cannot be loaded .*: it is dam"
                    ):
                        trainer.load_checkpoint(saved)
            path.write_bytes(whole)
        trainer.load_checkpoint(saved)


def test_what_is_not_a_checkpoint_is_refused(tmp_path: Path) -> None:
    job = trainer_job()
    with worker(job, model_folder(job, tmp_path / "model")) as trainer:
        with pytest.raises(
            CheckpointError, match=r"cannot be loaded \(No such file or directory\): it is damaged"
        ):
            trainer.load_checkpoint(tmp_path / "step_1")
        saved = trainer.save_checkpoint(tmp_path / "checkpoints", 1, b"")
    other = trainer_job(model={"hiddenSize": 64})
    with (
        worker(other, model_folder(other, tmp_path / "other")) as trainer,
        pytest.raises(CheckpointError, match="or of another model"),
    ):
        trainer.load_checkpoint(saved)
