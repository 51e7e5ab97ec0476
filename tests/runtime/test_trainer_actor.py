"""Trainer ranks as Ray actors, fed by a real queue."""

import itertools
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
import ray
from safetensors.torch import load_file
from torch.distributed import HashStore

from rljob_api import RLJob
from rljob_runtime.engines.protocol import WeightRef
from rljob_runtime.net.auth import ClientKeys, Endpoint
from rljob_runtime.queue.blocking_client import QueueClient
from rljob_runtime.samples import encode
from rljob_runtime.site import process_log
from rljob_runtime.trace.analyse.event_files import Tally, read_steps
from rljob_runtime.trace.record.event_log import STATES
from rljob_runtime.trainer.outline import GroupsMissing
from rljob_runtime.trainer.rank_actor import TrainerActor, TrainerSpec
from rljob_runtime.trainer.step_metrics import StepMetrics
from tests.support.runtime.trainer_ranks import groups, model_folder, trainer_job, with_ranks, worker

_SECONDS = 200.0
_START = ["process", "join", "load", "prepare"]
"""Parts of a rank's start, without its imports."""

pytestmark = pytest.mark.timeout(600)
"""Each of up to four processes imports torch and transformers."""


def start_ranks(
    job: RLJob, count: int, folder: Path, queue: tuple[Endpoint, ClientKeys], root: Path, total: int = 10
) -> list[Any]:
    specs = [spec_of(job, rank, count, folder, queue, root, total) for rank in range(count)]
    remote = ray.remote(num_cpus=0)(TrainerActor)
    ranks = [remote.remote(spec) for spec in specs]
    address, *_ = ray.get([rank.prepare.remote() for rank in ranks], timeout=_SECONDS)
    on_all(ranks, "setup", address)
    return ranks


def spec_of(
    job: RLJob,
    rank: int,
    count: int,
    folder: Path,
    queue: tuple[Endpoint, ClientKeys],
    root: Path,
    total: int = 10,
) -> bytes:
    spec = TrainerSpec(
        job.model_dump_json(by_alias=True, exclude_none=True), str(folder), None, str(folder),
        str(root / "checkpoints"), str(root / "weights"), None, str(root / "events"), 1 + rank, rank, count,
        total, 2, *queue,
    )  # fmt: skip
    return msgspec.msgpack.encode(spec)


def on_all(ranks: list[Any], method: str, *arguments: Any) -> list[Any]:
    return ray.get([getattr(rank, method).remote(*arguments) for rank in ranks], timeout=_SECONDS)


@pytest.mark.parametrize("count", [1, 2])
def test_trains_what_the_queue_holds(
    cluster: None, queue: tuple[Endpoint, ClientKeys], tmp_path: Path, count: int
) -> None:
    """Two steps, a publication, a checkpoint, and a restart from it; losses are those of a worker alone. Two
    ranks share samples that are too long for one. The second step has most of its groups, and others, before
    it begins."""
    job = trainer_job()
    run = job if count == 1 else with_ranks(job, count, maxTokensPerMicroBatch=32)
    folder = model_folder(job, tmp_path / "model")
    made = groups(8)
    with QueueClient(*queue, "producer") as client:
        client.put([(group.uid, len(group.samples), encode(group)) for group in made], 10)
        ranks = start_ranks(run, count, folder, queue, tmp_path)
        results = on_all(ranks, "step", 0, 0, [6, 2, 1, 3])
        on_all(ranks, "publish", 1)
        ref = msgspec.msgpack.decode(on_all(ranks[:1], "write_version")[0], type=WeightRef)
        published = load_file(Path(ref.location) / "model.safetensors")
        on_all(ranks, "save", 1, b"state")
        assert client.stats().done == 4
        on_all(ranks, "close")
        assert not Path(ref.location).exists()
        for rank in ranks:
            ray.kill(rank)

        ranks = start_ranks(run, count, folder, queue, tmp_path)
        assert on_all(ranks, "load")[0] == b"state"
        client.put([(8, 4, encode(groups(9)[8]))], 10)
        on_all(ranks[:1], "fetch_ahead", [8, 0, 4])
        on_all(ranks[:1], "fetch_ahead", [5])
        wait_for(lambda: client.stats().leased == 4)
        results += on_all(ranks, "step", 1, 1, [0, 4, 5, 7])
        # What was fetched and not named stays on lease, until the trainer leaves.
        assert (client.stats().done, client.stats().leased) == (8, 1)
        on_all(ranks, "close")
        wait_for(lambda: client.stats().ready == 1)
    losses = [msgspec.msgpack.decode(result, type=StepMetrics).loss for result in results]
    with worker(job, folder) as alone:
        first = alone.train_step(0, 0, [made[uid] for uid in (1, 2, 3, 6)]).loss
        for name, tensor in alone.weights():
            assert (published[name] - tensor).abs().max() < 1e-5
        second = alone.train_step(1, 1, [made[uid] for uid in (0, 4, 5, 7)]).loss
    assert losses == pytest.approx([first] * count + [second] * count, abs=1e-5)
    assert_no_overlap(tmp_path / "events", count)


def wait_for(met: Callable[[], bool]) -> None:
    """Of other processes, which tell nobody."""
    until = time.monotonic() + 20
    while not met():
        assert time.monotonic() < until
        time.sleep(0.01)


def assert_no_overlap(folder: Path, ranks: int) -> None:
    """What a rank does it does one after the other, and waits while it does nothing; a version is written
    beside all that."""
    events = [event for _, found in read_steps(folder, Tally()) for event in found]
    assert {event.worker for event in events} == {f"trainer-{rank}" for rank in range(ranks)}
    for name in {event.worker for event in events}:
        done = [event for event in events if event.worker == name and event.event not in STATES]
        own = sorted(done, key=lambda event: event.start)
        assert {"idle", "get", "forward", "weight_publish", "checkpoint"} <= {event.event for event in own}
        started = [event.extra["part"] for event in own if event.event == "start"]
        # Twice, as each rank is started again; rank 0, which opens the store, imports torch for that first.
        assert [part for part in started if part != "imports"] == [*_START, *_START]
        assert "imports" in started and all(event.duration > 0 for event in own if event.event == "start")
        own = [event for event in own if event.event != "weight_write"]
        for before, after in itertools.pairwise(own):
            # The clock is the time of day, in seconds since 1970: sums of it are right to a microsecond.
            assert after.start >= before.end - 1e-5, (before, after)


def test_a_dead_rank_does_not_hang_the_others(
    cluster: None, queue: tuple[Endpoint, ClientKeys], tmp_path: Path
) -> None:
    folder = model_folder(trainer_job(), tmp_path / "model")
    ranks = start_ranks(with_ranks(trainer_job(), 2), 2, folder, queue, tmp_path)
    with QueueClient(*queue, "producer") as client:
        client.put([(group.uid, len(group.samples), encode(group)) for group in groups(4)], 10)
        step = ranks[0].step.remote(0, 0, [0, 1, 2, 3])
        ray.kill(ranks[1])
        with pytest.raises(ray.exceptions.RayTaskError):
            ray.get(step, timeout=_SECONDS)
        assert client.stats().done == 0
        ray.kill(ranks[0])


def test_a_group_that_cannot_be_read_is_one_that_did_not_come(
    queue: tuple[Endpoint, ClientKeys], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So that rank 0 tells the others, which wait for what it has to share out."""
    monkeypatch.setattr(process_log, "begin", lambda *_: None)
    job = trainer_job()
    actor = TrainerActor(spec_of(job, 0, 1, model_folder(job, tmp_path / "model"), queue, tmp_path))
    actor._store = HashStore()
    try:
        actor.setup("")
        with QueueClient(*queue, "producer") as client:
            client.put([(0, 4, b"no group")], 10)
            with pytest.raises(GroupsMissing, match="groups did not come: Expected `object`"):
                actor.step(0, 0, [0])
            assert client.stats().done == 0
    finally:
        actor.close()
