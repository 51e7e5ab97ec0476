"""An engine that is lost while weights are broadcast costs seconds: with real processes, over gloo.

gloo stands for NCCL: what is tested is how the loss is told, who stops waiting for whom, and that the next
version gets through. NCCL's own abort takes accelerators.
"""

import asyncio
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import ray
from safetensors.torch import load_file

from rljob_api import RLJob
from rljob_runtime.driver import ranks as ray_trainer
from rljob_runtime.driver.job_settings import job_settings
from rljob_runtime.driver.ranks import RayTrainer
from rljob_runtime.engines.remote import RemoteEngine
from rljob_runtime.engines.rollout_worker import start_worker
from rljob_runtime.net.auth import ClientKeys, Endpoint, new_keys
from rljob_runtime.queue.blocking_client import QueueClient
from rljob_runtime.rollout.engine_slot import EngineSlot
from rljob_runtime.rollout.pool import EnginePool
from rljob_runtime.rollout.weight_sync import EngineSync, Push
from rljob_runtime.run_folder import RunOptions
from rljob_runtime.samples import encode
from rljob_runtime.site import one_machine as local_ray
from rljob_runtime.trace.record.event_log import EventLog
from rljob_runtime.trace.record.event_ranks import EventRanks
from rljob_runtime.weights.contents import tensor_shapes
from rljob_runtime.weights.route import WeightRoute
from tests.support.runtime.gloo_group import GlooSender, GlooTrainerActor, digest
from tests.support.runtime.prepared import prepared_workers
from tests.support.runtime.runs import processes
from tests.support.runtime.trainer_ranks import groups, model_folder, trainer_job
from tests.support.runtime.weight_receivers import LOSSES, LOSSES_IDS, Receiver, check_a_loss

SETTLE = 2.0
SOON = 30.0
"""Seconds, on a busy machine, in the place of the 300 that gloo would wait here and NCCL for ever."""

pytestmark = pytest.mark.timeout(600)

RECEIVER = """
import sys, time
from datetime import timedelta
from torch.distributed import TCPStore
from tests.support.runtime.gloo_group import digest, join, receive
from rljob_runtime.weights.collective import Rendezvous

location, until, shapes = sys.argv[1], sys.argv[2], eval(sys.argv[3])
if until == "store":
    meeting = Rendezvous.parse(location)
    store = TCPStore(meeting.host, meeting.port, meeting.world_size, False, timedelta(seconds=300))
else:
    group = join(location)
print("there", flush=True)
if until == "end":
    print(digest(receive(group, shapes)), flush=True)
time.sleep(600)
"""


SHAPES = {"a": (64, 1024, 256), "b": (3, 5)}
"""The first takes 64 MiB, more than sockets hold on the way."""


@pytest.mark.parametrize("loss", LOSSES, ids=LOSSES_IDS)
def test_a_sender_stops_waiting_for_a_lost_receiver(loss: tuple[str, bool]) -> None:
    """Wherever it was lost; afterwards a new group gets the weights."""
    check_a_loss(GlooSender, Receiver(RECEIVER, SHAPES), "cpu", loss, SOON)


class Site:
    """A trainer of two ranks and engines, all of them Ray actors; weights go over gloo."""

    def __init__(
        self, folder: Path, queue: tuple[Endpoint, ClientKeys], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        self.folder = folder
        self.job = trainer_job()
        self.model = model_folder(self.job, folder / "model")
        self.lost: list[str] = []
        self.pool = EnginePool(time.monotonic, lambda slot, why: self.lost.append(slot.engine.name))
        self.push = Push(EngineSync(self.pool, 120, 120), "keep", SETTLE)
        server_keys, client_keys = new_keys()
        route = WeightRoute("nccl", self.model, folder / "weights", server_keys, client_keys, None, None)
        options = RunOptions(folder, folder, resume=False, live=False)
        monkeypatch.setattr(ray_trainer, "TrainerActor", GlooTrainerActor)
        host = Queue(*queue)
        self.trainer = RayTrainer(
            self.job, job_settings(self.job, 64), options, host, None, EventRanks(), route
        )  # fmt: skip

    async def add_engine(self, name: str, silent: bool = False) -> None:
        server_keys, client_keys = new_keys()
        arguments: dict[str, Any] = {
            "folder": self.folder,
            "shapes": tensor_shapes(self.model),
            "silent": silent,
        }
        address = f"ipc://{self.folder}/{name}"
        actor = start_worker(
            "tests.support.runtime.gloo_group:GlooEngine", arguments, name, address, server_keys, num_cpus=0
        )
        engine = RemoteEngine(name, actor, client_keys)
        await engine.start(0)
        slot = EngineSlot(engine, "fast", 8, EventLog(None, 0, name, "fast"))
        self.pool.add(slot)
        self.pool.join(slot)

    async def publish(self, version: int) -> float:
        """Broadcast the trainer's weights; the seconds that it took."""
        began = time.monotonic()
        await self.push.deliver(await self.trainer.ref(version), self.trainer)
        return time.monotonic() - began

    def got(self, name: str, version: int) -> str:
        """Digest of what an engine got."""
        return (self.folder / f"{name}.{version}").read_text()

    async def loading(self, name: str) -> int:
        """Wait until an engine is asked for a version; its process."""
        path = self.folder / f"{name}.loading"
        async with asyncio.timeout(120):
            while not path.exists():  # noqa: ASYNC110 - another process writes it
                await asyncio.sleep(0.05)
        return int(path.read_text())

    async def close(self) -> None:
        await asyncio.gather(*(slot.engine.close() for slot in list(self.pool.slots)))
        await self.trainer.close()


class Queue:
    """What the trainer needs of the queue's service."""

    def __init__(self, endpoint: Endpoint, keys: ClientKeys) -> None:
        self.endpoint = endpoint
        self.keys = keys


@pytest.fixture
def node() -> Iterator[str]:
    """The id of a Ray node with places for two ranks."""
    two = trainer_job().model_dump(by_alias=True, exclude_none=True)
    two["spec"]["pools"]["trainer"]["replicas"] = 2
    with prepared_workers(), local_ray.started(RLJob.model_validate(two)):
        yield ray.get_runtime_context().get_node_id()


async def test_the_trainer_goes_on_when_an_engine_dies_in_the_meeting(
    node: str,
    queue: tuple[Endpoint, ClientKeys],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The same processes train the next step, and a new group of engines gets the next version."""
    site = Site(tmp_path, queue, monkeypatch)
    made = groups(4)
    await asyncio.gather(
        site.trainer.start([node, node]), site.add_engine("one"), site.add_engine("silent", silent=True)
    )
    ranks = [process for process in trainers() if process.is_running()]
    assert len(ranks) == 2

    publishing = asyncio.create_task(site.publish(1))
    victim = await site.loading("silent")
    await site.loading("one")
    os.kill(victim, signal.SIGKILL)
    killed = time.monotonic()
    await publishing
    assert time.monotonic() - killed < SOON
    assert sorted(site.lost) == ["one", "silent"]

    with QueueClient(*queue, "producer") as client:
        client.put([(group.uid, len(group.samples), encode(group)) for group in made], 10)
        await site.trainer.step(0, 0, [0, 1, 2, 3])
    assert all(process.is_running() for process in ranks)

    await asyncio.gather(site.add_engine("two"), site.add_engine("three"))
    for version in (2, 3):
        await site.publish(version)
        assert [slot.version for slot in site.pool.slots] == [version, version]
    got = {site.got(name, version) for name in ("two", "three") for version in (2, 3)}
    assert len(got) == 1
    first = digest(load_file(site.model / "model.safetensors"))
    assert got != {first}, "the step has changed the weights"

    # As after its loss, or for another size: the engines stay, and meet the processes that have come.
    await site.trainer.start([node, node])
    await site.publish(4)
    assert {site.got(name, 4) for name in ("two", "three")} == {first}
    await site.close()


def trainers() -> list[psutil.Process]:
    """The living processes of the trainer."""
    return processes(os.getpid(), "GlooTrainerActor")
