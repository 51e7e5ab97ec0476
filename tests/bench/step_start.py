"""Where the time of a trainer's step goes before its first forward pass: from the call of its ranks until the
first micro-batch is put into the model.

Whole ranks (`TrainerActor`), a process each, without Ray: gloo between them, the queue's server in a process
of its own, over tcp with encryption, as in a cluster. A step has 512 samples, 16 to a prompt, of lengths as
in tests/bench/hdp_plan.py, which two ranks share by need. Steps are broken off where their first forward pass
would begin: on a CPU the passes would take hours. How long a step's passes take is what its plan expects, by
the constants that tests/bench/hdp_plan.py assumes (an 8 B model on H200s). Figures are of rank 0, which has
the groups, the median of the steps after the first two: where ranks wait for each other the other one has
just come from the same part. Steps take turns: in every second one rank 0 has fetched all groups before the
call, as it does beside the step before; the baseline is those in which it has none.

    python -m tests.bench.step_start
"""

import multiprocessing
import statistics
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from rljob_api import RLJob
from rljob_runtime.net.auth import ClientKeys, Endpoint, ServerKeys, new_keys
from rljob_runtime.parallel.hdp_plan import Plan
from rljob_runtime.samples import Group, Sample, Span, encode
from tests.bench.figures import Figure, parser, record
from tests.bench.hdp_plan import SETS, cost_model
from tests.bench.rank_pool import RankPool

CASES = ("7.3k", "1.5k")
"""Response lengths by their mean."""
RANKS, CAP = 2, 16384
PROMPTS, SAMPLES = 32, 16
WARM, STEPS = 2, 20
"""Steps that do not count, and all steps."""
PARTS = {
    "get": "groups from the queue",
    "decode_group": "groups decoded",
    "broadcast_outlines": "outlines to all ranks",
    "batches_of": "advantages, and what is trained",
    "plan": "planning",
    "agree": "plans compared",
    "scatter_contents": "responses to the ranks that train them",
    "rest": "the first micro-batch, and all else",
}
"""What is timed, by the function."""
_VOCABULARY = 64
_SECONDS = 600.0


def job(lengths: str) -> RLJob:
    longest = SETS[lengths].cap
    training = {
        "model": {"random": {"vocabularySize": _VOCABULARY, "maxPositionEmbeddings": longest}},
        "tokenizer": {"characters": {}},
        "data": {"generated": {"task": "copy"}, "maxPromptTokens": 128},
        "reward": {"function": "rljob_runtime.rewards.tasks:copy"},
        "rollout": {"engine": {"vllm": {}}, "samplesPerPrompt": SAMPLES, "maxResponseTokens": longest - 128},
        "optimizer": {"learningRate": 1e-6},
        "schedule": {"totalSteps": 100, "promptsPerBatch": PROMPTS},
        "parallel": {"maxTokensPerMicroBatch": CAP, "contextParallel": {"hybrid": {}}},
        "profiling": {"events": False},
    }
    spec = {"accelerator": "cpu", "pools": {"trainer": {"replicas": RANKS}}, "training": training}
    return RLJob.model_validate({"metadata": {"name": "bench"}, "spec": spec})


def groups_of(lengths: str, step: int) -> list[Group]:
    """Those of a step; their uids go on from the step before."""
    drawn = SETS[lengths].draw(PROMPTS, SAMPLES, step)
    tokens = drawn.lengths.clip(max=SETS[lengths].cap - 128)
    rng = np.random.default_rng(step)

    def sample(length: int) -> Sample:
        drawn = rng.integers(0, _VOCABULARY, length).astype(np.int32)
        log_probs = rng.standard_normal(length).astype(np.float32)
        return Sample(drawn, log_probs, (Span(step, 0, length),), "length", float(rng.random()))

    rows = zip(drawn.prompt_tokens.tolist(), tokens.tolist(), strict=True)
    return [
        Group(uid, 0, uid, np.zeros(prompt, np.int32), tuple(map(sample, row)), step)
        for uid, (prompt, row) in enumerate(rows, start=step * PROMPTS)
    ]


class Reached(Exception):
    """The first forward pass would begin."""


class Watch:
    """Seconds of the parts of a step on this rank."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self.expected = 0.0
        """Seconds of the step's passes by its plan."""

    def time(self, where: Any, name: str) -> None:
        """Time the calls of a function, a part by its name."""
        call = getattr(where, name)

        def timed(*given: Any, **named: Any) -> Any:
            began = time.perf_counter()
            found = call(*given, **named)
            part = name.strip("_")
            self.seconds[part] = self.seconds.get(part, 0.0) + time.perf_counter() - began
            if isinstance(found, Plan):
                self.expected = found.seconds
            return found

        setattr(where, name, timed)

    def step(self, all_of_it: float) -> dict[str, float]:
        """The parts of a step, and begin anew."""
        parts = self.seconds | {"all": all_of_it, "expected": self.expected}
        parts["rest"] = all_of_it - sum(self.seconds.values())
        self.seconds.clear()
        return parts


def begin_steps(
    number: int, meeting: Path, lengths: str, queue: tuple[Endpoint, ClientKeys], folder: Path
) -> list[dict[str, float]]:
    """Begin steps on a rank; the seconds of each one's parts."""
    import torch
    import torch.distributed as dist

    from rljob_runtime.trainer import groups_ahead, rank, rank_actor, step
    from rljob_runtime.trainer.micro_batch_work import MicroBatchWork

    def reached(*_: Any) -> Any:
        raise Reached

    torch.set_num_threads(1)
    described = job(lengths).model_dump_json(by_alias=True, exclude_none=True)
    spec = rank_actor.TrainerSpec(
        described, str(folder / "model"), None, str(folder), str(folder), str(folder / "weights"), None, None,
        number + 1, number, RANKS, 100, 2, *queue,
    )  # fmt: skip
    actor = rank_actor.TrainerActor(msgspec.msgpack.encode(spec))
    actor._store = dist.FileStore(str(meeting), RANKS)
    actor.setup("")
    worker, watch = actor._ready, Watch()
    # No pass is made that could be measured.
    worker._steps._costs._fit.model = cost_model(slow=False, largest=RANKS)
    setattr(MicroBatchWork, "score", reached)  # noqa: B010 - for the rest of this process
    watch.time(rank, "broadcast_outlines")
    for name in ("batches_of", "agree", "scatter_contents"):
        watch.time(step, name)
    watch.time(worker._steps, "_plan")
    if actor._queue is not None:
        watch.time(actor._queue, "get")
        watch.time(groups_ahead, "decode_group")
    rows: list[dict[str, float]] = []
    for each in range(STEPS):
        uids = range(each * PROMPTS, (each + 1) * PROMPTS)
        if each % 2 and actor._ahead is not None:
            actor.fetch_ahead(uids)
            # The thread makes one thing after the other.
            actor._ahead._thread.submit(lambda: None).result(_SECONDS)
            watch.seconds.clear()
        dist.barrier()
        began = time.perf_counter()
        try:
            actor.step(each, each, uids)
        except Reached:
            rows.append(watch.step(time.perf_counter() - began))
    actor.close()
    return rows


def serve(pipe: Any, keys: ServerKeys) -> None:
    """The queue, until told to end."""
    from rljob_runtime.queue.broker import Broker
    from rljob_runtime.queue.server import QueueServer

    server = QueueServer(Broker(STEPS * PROMPTS * SAMPLES, lease_seconds=60.0), "tcp://127.0.0.1:0", keys)
    server.start()
    pipe.send(server.endpoint)
    pipe.recv()
    server.stop()


@contextmanager
def queue_process() -> Iterator[tuple[Endpoint, ClientKeys]]:
    """Where a queue listens, in a process of its own."""
    server_keys, client_keys = new_keys()
    ours, theirs = multiprocessing.Pipe()
    context = multiprocessing.get_context("forkserver")
    process = context.Process(target=serve, args=(theirs, server_keys), daemon=True)
    process.start()
    try:
        yield ours.recv(), client_keys
    finally:
        ours.send(None)
        process.join()


def measure(lengths: str, folder: Path) -> list[Figure]:
    from rljob_runtime.queue.blocking_client import QueueClient
    from rljob_runtime.trainer.model import save_initial_model

    folder.mkdir()
    save_initial_model(job(lengths), _VOCABULARY, 0, 1, 2, folder / "model")
    pool, tokens = RankPool(RANKS), []
    try:
        with queue_process() as queue, QueueClient(*queue, "driver") as client:
            for step in range(STEPS):
                groups = groups_of(lengths, step)
                tokens.append(sum(len(sample.tokens) for group in groups for sample in group.samples))
                client.put([(group.uid, SAMPLES, encode(group)) for group in groups], _SECONDS)
            found = pool.run(_SECONDS, begin_steps, lengths, queue, folder)
    finally:
        pool.close()
    if isinstance(found, str):
        raise SystemExit(found)
    mean = statistics.mean(tokens[WARM:])
    what = f"512 responses of {lengths}, {mean / 1e6:.2f} M tokens, {RANKS} ranks"
    rows = found[0][WARM:]
    called, ahead = (typical(rows[number::2]) for number in range(2))
    return [*_figures(what, called, mean), *_figures(f"{what}, fetched ahead", ahead, mean, called)]


def typical(rows: list[dict[str, float]]) -> dict[str, float]:
    """Of each part the median; one that a step did not come to took no time."""
    return {
        name: statistics.median(row.get(name, 0.0) for row in rows) for name in (*PARTS, "all", "expected")
    }


def _figures(
    what: str, found: dict[str, float], tokens: float, baseline: dict[str, float] | None = None
) -> Iterator[Figure]:
    def than(part: str) -> float | None:
        return None if baseline is None else 1e3 * baseline[part]

    for part, said in PARTS.items():
        yield Figure(f"{what}: {said}", 1e3 * found[part], "ms", than(part))
    yield Figure(f"{what}: all until the first forward pass", 1e3 * found["all"], "ms", than("all"))
    yield Figure(f"{what}: all, share of the expected step", 100 * found["all"] / found["expected"], "%")
    yield Figure(f"{what}: planning, share of it", 100 * found["plan"] / found["expected"], "%")
    yield Figure(f"{what}: all, for a token", 1e9 * found["all"] / tokens, "ns")


def main() -> None:
    out = parser(__doc__).parse_args().out
    figures: list[Figure] = []
    with tempfile.TemporaryDirectory() as scratch:
        for lengths in CASES:
            figures += measure(lengths, Path(scratch) / lengths)
    record("step_start", figures, out)


if __name__ == "__main__":
    main()
