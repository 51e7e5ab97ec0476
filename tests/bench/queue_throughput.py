"""Throughput of the sample queue: 8 KB groups from put to get to acknowledgement, a process each for the
producer, the server and the consumer.

The baseline, in the same run: a queue in a Ray actor with one call per put (16 at a time) and one per get.
Every run is checked: all groups are acknowledged, and of every 61st the content is compared.

    python tests/bench/queue_throughput.py
"""

import asyncio
import multiprocessing
import os
import random
import sys
import tempfile
import time
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import median
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))
from rljob_runtime.net.auth import ClientKeys, Endpoint, ServerKeys, new_keys
from rljob_runtime.queue.blocking_client import QueueClient
from rljob_runtime.queue.broker import Broker
from rljob_runtime.queue.client import AsyncQueueClient
from rljob_runtime.queue.server import QueueServer
from tests.bench.figures import Figure, parser, record

GROUP_BYTES = 8192
SAMPLES = 8
CAPACITY_GROUPS = 4096
TIMEOUT = 120.0
CHECK_EVERY = 61
PUTS_AT_ONCE = 16

_spawn = multiprocessing.get_context("spawn")


def payloads() -> Callable[[int], bytes]:
    """The content of a group by uid: its number in front of random bytes."""
    fillings = [random.Random(seed).randbytes(GROUP_BYTES - 8) for seed in range(64)]
    return lambda uid: uid.to_bytes(8, "little") + fillings[uid % 64]


def check(uid: int, frame: bytes, payload: Callable[[int], bytes]) -> None:
    if uid % CHECK_EVERY == 0 and zlib.crc32(frame) != zlib.crc32(payload(uid)):
        raise AssertionError(f"group {uid} has the wrong content")


def serve(pipe: Connection, address: str, keys: ServerKeys) -> None:
    server = QueueServer(Broker(CAPACITY_GROUPS * SAMPLES, 30.0), address, keys)
    server.start()
    pipe.send(server.endpoint)
    pipe.recv()
    server.stop()


def produce(
    pipe: Connection, endpoint: Endpoint, keys: ClientKeys, groups: int, batch: int, lanes: int
) -> None:
    payload = payloads()

    async def lane(queue: AsyncQueueClient, starts: Iterator[int]) -> None:
        for start in starts:
            uids = range(start, min(start + batch, groups))
            accepted = await queue.put([(uid, SAMPLES, payload(uid)) for uid in uids], TIMEOUT)
            assert all(accepted)

    async def main() -> None:
        async with AsyncQueueClient(endpoint, keys, "producer") as queue:
            await queue.stats()
            pipe.send("ready")
            pipe.recv()
            pipe.send(time.monotonic())
            starts = iter(range(0, groups, batch))
            await asyncio.gather(*(lane(queue, starts) for _ in range(lanes)))

    asyncio.run(main())


def consume(
    pipe: Connection, endpoint: Endpoint, keys: ClientKeys, groups: int, batch: int, lanes: int
) -> None:
    payload = payloads()

    async def lane(queue: AsyncQueueClient, starts: Iterator[int]) -> None:
        for start in starts:
            uids = range(start, min(start + batch, groups))
            for uid, frame in zip(uids, await queue.get(uids, TIMEOUT), strict=True):
                check(uid, frame, payload)
            fresh = await queue.ack(uids, TIMEOUT)
            assert all(fresh)

    async def main() -> None:
        async with AsyncQueueClient(endpoint, keys, "consumer") as queue:
            await queue.stats()
            pipe.send("ready")
            pipe.recv()
            starts = iter(range(0, groups, batch))
            await asyncio.gather(*(lane(queue, starts) for _ in range(lanes)))
            pipe.send(time.monotonic())

    asyncio.run(main())


@contextmanager
def process(target: Callable[..., None], *arguments: Any) -> Iterator[Connection]:
    ours, theirs = _spawn.Pipe()
    child = _spawn.Process(target=target, args=(theirs, *arguments))
    child.start()
    theirs.close()
    try:
        yield ours
        child.join(30)
        if child.exitcode != 0:
            raise RuntimeError(f"{target.__name__} ended with {child.exitcode}")
    finally:
        child.kill()


def queue_rate(address: str, groups: int, batch: int, lanes: int) -> float:
    """Groups per second from the first put to the last acknowledgement."""
    server_keys, client_keys = new_keys()
    with process(serve, address, server_keys) as server:
        endpoint = server.recv()
        arguments = (endpoint, client_keys, groups, batch, lanes)
        with process(produce, *arguments) as producer, process(consume, *arguments) as consumer:
            producer.recv(), consumer.recv()
            for each in (consumer, producer):
                each.send("go")
            began: float = producer.recv()
            ended: float = consumer.recv()
        with QueueClient(endpoint, client_keys, "auditor") as auditor:
            stats = auditor.stats()
        assert stats.accepted == stats.acknowledged == stats.done == groups, stats
        assert stats.ready == stats.leased == stats.held_samples == 0, stats
        server.send("stop")
    return groups / (ended - began)


def ray_rate(groups: int) -> float:
    """The same groups through a Ray actor, one call per put and one per get."""
    import ray

    class ActorQueue:
        def __init__(self) -> None:
            self._groups: asyncio.Queue[tuple[int, bytes]] = asyncio.Queue(CAPACITY_GROUPS)

        async def put(self, uid: int, frame: bytes) -> None:
            await self._groups.put((uid, frame))

        async def get(self) -> tuple[int, bytes]:
            return await self._groups.get()

    def put_all(queue: Any, groups: int) -> float:
        payload = payloads()
        waiting: list[Any] = []
        began = time.monotonic()
        for uid in range(groups):
            if len(waiting) == PUTS_AT_ONCE:
                _, waiting = ray.wait(waiting, num_returns=1)
            waiting.append(queue.put.remote(uid, payload(uid)))
        ray.get(waiting)
        return began

    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, object_store_memory=200 * 2**20)
    try:
        queue = ray.remote(num_cpus=0)(ActorQueue).remote()
        produce_in_ray = ray.remote(num_cpus=0)(put_all)
        payload = payloads()
        # Warm up: processes started, functions exported.
        ray.get([produce_in_ray.remote(queue, 16), *(queue.get.remote() for _ in range(16))])
        producing = produce_in_ray.remote(queue, groups)
        seen = set()
        for _ in range(groups):
            uid, frame = ray.get(queue.get.remote())
            check(uid, frame, payload)
            seen.add(uid)
        ended = time.monotonic()
        assert seen == set(range(groups))
        began: float = ray.get(producing)
        return groups / (ended - began)
    finally:
        ray.shutdown()


def main() -> None:
    command = parser(__doc__)
    command.add_argument("--groups", type=int, default=120_000, help="groups per run of the queue")
    command.add_argument("--baseline-groups", type=int, default=3_000, help="groups per run of the Ray actor")
    command.add_argument("--batch", type=int, default=128, help="groups per message")
    command.add_argument("--repeats", type=int, default=3, help="runs of each, of which the median counts")
    options = command.parse_args()
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    # Ray's workers would else yield to whatever runs beside the benchmark, unlike the queue's processes.
    os.environ.setdefault("RAY_worker_niceness", "0")

    with tempfile.TemporaryDirectory() as folder:
        ipc, tcp = f"ipc://{folder}/queue", "tcp://127.0.0.1:0"
        batched, groups = options.batch, options.groups
        runs: tuple[Callable[[], float], ...] = (
            lambda: queue_rate(ipc, groups, batched, 3),
            lambda: queue_rate(tcp, groups, batched, 3),
            lambda: queue_rate(ipc, groups // 10, 1, PUTS_AT_ONCE),
            lambda: ray_rate(options.baseline_groups),
        )
        # In turn, so that whatever else the machine does slows all of them alike.
        rounds = [[run() for run in runs] for _ in range(options.repeats)]
    fast, secure, single, baseline = (median(rates) for rates in zip(*rounds, strict=True))
    goal = "at least 30,000 groups/s and 100 x a Ray actor queue with one call per put and get"
    what = f"queue, {GROUP_BYTES // 1024} KB groups, put to acknowledgement"
    record(
        "queue_throughput",
        [
            Figure(f"{what}, ipc, {batched} per message", fast, "groups/s", baseline, goal),
            Figure(f"{what}, tcp with CURVE, {batched} per message", secure, "groups/s", baseline),
            Figure(f"{what}, ipc, 1 per message, {PUTS_AT_ONCE} at a time", single, "groups/s", baseline),
            Figure(f"Ray actor queue, one call per put, {PUTS_AT_ONCE} at a time", baseline, "groups/s"),
        ],
        options.out,
    )


if __name__ == "__main__":
    main()
