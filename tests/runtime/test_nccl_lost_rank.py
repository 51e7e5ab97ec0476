"""A rank that is killed within a step over NCCL, where its peers wait in a kernel and get no error.

Needs two NVIDIA accelerators; over gloo, which tells of a connection that is gone, `test_hdp.py` and
`test_trainer_actor.py` have the counterparts.
"""

import asyncio
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from unittest.mock import patch

import pytest
import ray

from rljob_api import RLJob
from rljob_runtime.driver.job_settings import job_settings
from rljob_runtime.driver.rank_calls import TrainerDied
from rljob_runtime.driver.ranks import RayTrainer
from rljob_runtime.net.auth import ClientKeys, Endpoint, new_keys
from rljob_runtime.queue.blocking_client import QueueClient
from rljob_runtime.run_folder import RunOptions
from rljob_runtime.samples import encode
from rljob_runtime.site import one_machine
from rljob_runtime.trace.record.event_ranks import EventRanks
from rljob_runtime.weights.route import WeightRoute
from tests.support.runtime import rank_processes
from tests.support.runtime.rank_processes import RankProcesses
from tests.support.runtime.trainer_ranks import groups, model_folder, trainer_job, worker
from tests.support.runtime.two_devices import ACCELERATOR, device_of, needs_two

RANKS = 2
PATIENCE = 20.0
"""Seconds that ranks wait for one another here."""
KILLED = {"policyLoss": {"custom": {"function": "tests.support.runtime.own_objective:killed_on_rank_1"}}}

pytestmark = [needs_two, pytest.mark.timeout(300)]


class Queue:
    """What the trainer needs of the queue's service."""

    def __init__(self, endpoint: Endpoint, keys: ClientKeys) -> None:
        self.endpoint = endpoint
        self.keys = keys


def job() -> RLJob:
    return trainer_job(KILLED, ranks=2, accelerator=ACCELERATOR, compute={"compile": False})


@pytest.fixture
def node() -> Iterator[str]:
    """The id of a Ray node with places for two ranks."""
    with one_machine.started(job()):
        yield ray.get_runtime_context().get_node_id()


async def test_the_driver_names_the_rank_at_once(
    node: str, queue: tuple[Endpoint, ClientKeys], tmp_path: Path
) -> None:
    """It hears of the process, and not of the other rank, which it ends: that one would wait on."""
    made, folder = groups(4), model_folder(trainer_job(), tmp_path / "model")
    route = WeightRoute("shm", folder, tmp_path / "weights", *new_keys(), None, None)
    options = RunOptions(tmp_path, tmp_path, resume=False, live=False)
    host = Queue(*queue)
    trainer = RayTrainer(job(), job_settings(job(), 64), options, host, None, EventRanks(), route)
    async with asyncio.timeout(200):
        await trainer.start([node, node])
    with QueueClient(*queue, "producer") as client:
        client.put([(group.uid, len(group.samples), encode(group)) for group in made], 10)
        began = time.monotonic()
        with pytest.raises(TrainerDied, match=r"a process of the trainer died \(rank 1\)"):
            await trainer.step(0, 0, [0, 1, 2, 3])
        # Kernels are loaded in it.
        assert time.monotonic() - began < 60
        assert client.stats().done == 0, "the step's groups are there for the next try"
    await trainer.close()


def test_a_rank_alone_ends_within_the_time_out(ranks: RankProcesses, tmp_path: Path) -> None:
    """Also where nobody ends it: NCCL's watchdog ends the process, or the call raises."""
    folder = model_folder(trainer_job(), tmp_path / "model")
    # The start of both, and what torch takes to write down what they were at.
    with patch.object(rank_processes, "_SECONDS", PATIENCE + 90):
        (done, told), killed = ranks.outcomes(2, _step, folder)
    assert killed == (False, "the process died")
    assert not done
    ended = told == "the process died" or "RankLost: step 1: another rank of the trainer ended" in told
    assert ended, told


def _step(rank: int, world_size: int, store: Path, folder: Path) -> None:
    from rljob_runtime.trainer.rank import TrainerWorker

    real = TrainerWorker.setup

    def impatient(trainer: TrainerWorker, store: object) -> None:
        trainer._patience = timedelta(seconds=PATIENCE)
        real(trainer, store)

    with (
        patch.object(TrainerWorker, "setup", impatient),
        worker(job(), folder, rank, world_size, store, device_index=device_of(rank)) as trainer,
    ):
        trainer.train_step(0, 0, groups(4) if rank == 0 else None)
