"""How many samples the driver carries from prompt to trained group, on one core, with engines that answer at
once: what is left is the driver's own work.

Real: rollouter, engine pool with placement, staleness control with its selection, outbox with the encoding of
groups, the queue's rules (`Broker`, without its sockets and process), and events in files, as jobs have them.
Made up: engines, which keep a request until as many run as fit on all of them and then answer the 64 oldest
of the whole fleet with fresh arrays; a reward of 1; a trainer that takes its groups from the queue,
acknowledges them at once, and gives every engine a new version after every step. The messages to engines in
other processes and the reward processes are not part of it.

Every run is a process of its own on one core. The baseline, in the same run: 8 engines that together run as
many requests. Every run is checked: each step trains whole groups, none twice; of every 61st the length and
the age of its responses are looked at.

    python -m tests.bench.driver_throughput
"""

import argparse
import asyncio
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from rljob_runtime.engines.protocol import Request
from rljob_runtime.groups.ledger import Ledger
from rljob_runtime.groups.responses import Response
from rljob_runtime.groups.staleness import Bound, StalenessController
from rljob_runtime.groups.state import RolloutSettings
from rljob_runtime.queue.broker import Broker, Granted, Stored
from rljob_runtime.queue.wire import QueuedGroup
from rljob_runtime.rewards import Score
from rljob_runtime.rollout.engine_slot import EngineSlot
from rljob_runtime.rollout.outbox import Outbox
from rljob_runtime.rollout.pool import EnginePool
from rljob_runtime.rollout.rollouter import Rollouter
from rljob_runtime.samples import Generation, Prompt, Span, decode_group
from rljob_runtime.trace.record.event_log import EventLog
from tests.bench.figures import Figure, record

ENGINES, BASELINE_ENGINES = 1024, 8
IN_FLIGHT = 100_000
RESPONSE_TOKENS, PROMPT_TOKENS = 2000, 500
SAMPLES = 8
GROUPS_PER_STEP = 512
ANSWERS_AT_ONCE = 64
CHECK_EVERY = 61


class Answers:
    """The requests of all engines, in order of arrival; the oldest are answered when all engines are full."""

    def __init__(self, in_flight: int) -> None:
        self.version = 0
        self._in_flight = in_flight
        self._waiting: deque[tuple[str, asyncio.Future[Generation]]] = deque()
        self._tokens = np.full(RESPONSE_TOKENS, 7, np.int32)
        self._log_probs = np.full(RESPONSE_TOKENS, -1.5, np.float32)

    def add(self, request: Request) -> "asyncio.Future[Generation]":
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Generation] = loop.create_future()
        self._waiting.append((request.request_id, future))
        if len(self._waiting) == self._in_flight:
            loop.call_soon(self._answer)
        return future

    def _answer(self) -> None:
        spans = (Span(self.version, 0, RESPONSE_TOKENS),)
        for _ in range(ANSWERS_AT_ONCE):
            name, future = self._waiting.popleft()
            arrays = self._tokens.copy(), self._log_probs.copy()
            future.set_result(Generation(name, *arrays, spans, "stop"))


class InstantEngine:
    """As much of an engine as the rollouter uses."""

    def __init__(self, name: str, answers: Answers) -> None:
        self.name = name
        self._answers = answers

    async def submit(self, request: Request) -> Generation:
        return await self._answers.add(request)


class LocalQueue:
    """The queue's rules without sockets, as the outbox's client and as the trainer's."""

    def __init__(self, capacity_samples: int) -> None:
        self._broker = Broker(capacity_samples, lease_seconds=1e9)
        self._calls = 0

    def _ticket(self, client: str) -> tuple[str, int]:
        self._calls += 1
        self._broker.touch(client, 0.0)
        return client, self._calls

    async def put(self, groups: Sequence[tuple[int, int, bytes]], timeout: float) -> list[bool]:
        (outcome,) = self._broker.put(self._ticket("driver"), [QueuedGroup(*group) for group in groups])
        assert isinstance(outcome, Stored), "an outstanding group has its place in the queue"
        return list(outcome.accepted)

    def train(self, uids: Sequence[int], version: int, bound: Bound) -> None:
        """Take these groups and acknowledge them; looks at some of them."""
        (outcome,) = self._broker.get(self._ticket("trainer"), uids)
        assert isinstance(outcome, Granted), outcome
        for queued in outcome.groups:
            if queued.uid % CHECK_EVERY == 0:
                group = decode_group(queued.frame)
                assert [len(sample.tokens) for sample in group.samples] == [RESPONSE_TOKENS] * SAMPLES
                assert all(version - sample.spans[0].version <= bound.versions for sample in group.samples)
        fresh, _ = self._broker.ack(uids, self._broker.term)
        assert all(fresh)


async def measure(engines: int, in_flight: int, steps: int, folder: Path) -> dict[str, float]:
    """Samples per second of time and of processor time, and memory, of one run."""
    # As many outstanding groups as run, and those of two steps beside them.
    bound = Bound(-(-in_flight // (SAMPLES * GROUPS_PER_STEP)) + 2, GROUPS_PER_STEP)
    controller = StalenessController(bound, total_groups=10**9)
    queue, answers = LocalQueue(bound.most_outstanding * SAMPLES), Answers(in_flight)
    events = EventLog(folder, 0, "driver", "driver")
    pool = EnginePool(time.monotonic, _never_lost)
    client: Any = queue
    outbox = Outbox(client, events, put_seconds=60)
    rollouter = Rollouter(
        RolloutSettings(SAMPLES, 2 * RESPONSE_TOKENS, seed=0), pool, controller, _prompt, Ledger(),
        iter(range(10**9)), _score, outbox, events,
    )  # fmt: skip
    for index in range(engines):
        engine: Any = InstantEngine(f"fast-{index}", answers)
        limit = in_flight // engines + (index < in_flight % engines)
        slot = EngineSlot(engine, "fast", limit, EventLog(folder, index + 1, engine.name, "fast"))
        pool.add(slot)
        pool.join(slot)
    before = _resident()
    rolling = asyncio.ensure_future(rollouter.run())
    await rollouter.group_ready.wait()
    in_flight_bytes = (_resident() - before) / in_flight
    began, began_busy = time.perf_counter(), time.process_time()
    for step in range(steps):
        while (uids := controller.select(step)) is None:
            assert not rolling.done(), rolling
            rollouter.group_ready.clear()
            await rollouter.group_ready.wait()
        outbox.taken(step, uids)
        queue.train(uids, step, bound)
        controller.finished(uids)
        outbox.forget(uids)
        pool.step = answers.version = step + 1
        for slot in pool.slots:
            pool.leave(slot)
            pool.loaded(slot, step + 1)
        for slot in pool.slots:
            pool.join(slot)
        rollouter.poke()
    samples = steps * GROUPS_PER_STEP * SAMPLES
    seconds, busy = time.perf_counter() - began, time.process_time() - began_busy
    return {
        "rate": samples / seconds,
        "busy_rate": samples / busy,
        "sample_bytes": in_flight_bytes,
        "peak_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
    }


def _never_lost(slot: EngineSlot, why: str) -> None:
    raise AssertionError(f"{slot.engine.name}: {why}")


def _prompt(uid: int) -> Prompt:
    return Prompt(uid=uid, epoch=0, row=uid, tokens=np.full(PROMPT_TOKENS, uid % 30_000, np.int32))


async def _score(prompt: Prompt, responses: Sequence[Response]) -> list[Score]:
    return [Score(1.0) for _ in responses]


def _resident() -> int:
    """Bytes of this process in memory."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def run_alone(engines: int, options: argparse.Namespace) -> dict[str, float]:
    """`measure` in a process of its own, on one core."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "tests.bench.driver_throughput", f"--alone={engines}"]
        command += [f"--in-flight={options.in_flight}", f"--steps={options.steps}", f"--events={folder}"]
        finished = subprocess.run(command, stdout=subprocess.PIPE, check=True, timeout=600)
    result: dict[str, float] = json.loads(finished.stdout)
    return result


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--engines", type=int, default=ENGINES)
    parser.add_argument("--in-flight", type=int, default=IN_FLIGHT, help="requests on all engines together")
    parser.add_argument("--steps", type=int, default=20, help=f"steps of {GROUPS_PER_STEP * SAMPLES} samples")
    parser.add_argument("--repeats", type=int, default=3, help="runs of each, of which the median counts")
    parser.add_argument("--alone", type=int, help="measure once with so many engines, and print the result")
    parser.add_argument("--events", type=Path, help="folder for the events of such a run")
    options = parser.parse_args()
    if options.alone is not None:
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
        print(
            json.dumps(asyncio.run(measure(options.alone, options.in_flight, options.steps, options.events)))
        )
        return
    # In turn, so that whatever else the machine does slows both alike.
    both = (options.engines, BASELINE_ENGINES)
    runs = [[run_alone(engines, options) for engines in both] for _ in range(options.repeats)]
    many, few = (
        {name: median(run[name] for run in of_one) for name in of_one[0]}
        for of_one in zip(*runs, strict=True)
    )
    rate, busy_rate = (many[name] for name in ("rate", "busy_rate"))
    what = f"{options.engines:,} engines, {options.in_flight:,} requests in flight"
    goal = "at least 4,000 samples of 2,000 tokens per second on one core"
    record(
        "driver_throughput",
        [
            Figure(f"samples carried, {what}", rate, "samples/s", few["rate"], goal),
            Figure("the same, by processor time", busy_rate, "samples/s", few["busy_rate"]),
            Figure(
                f"driver's memory for a request in flight, prompt of {PROMPT_TOKENS} tokens",
                many["sample_bytes"], "bytes", few["sample_bytes"],
            ),
            Figure("driver's memory, at most", many["peak_bytes"] / 2**20, "MiB", few["peak_bytes"] / 2**20),
        ],
    )  # fmt: skip


if __name__ == "__main__":
    main()
