"""A trainer's step with samples shared by need, against one degree for all samples, on the ranks of a node.

Each way trains the same samples with whole trainer ranks, a process each, without Ray: a random Qwen3-like
model, lengths as in tests/bench/hdp_plan.py. Ways: no sample shared; every one shared by 2, 4, … ranks, with
either kind of attention, each where the longest sample fits; shared by need, also with one kind of attention
for all and by two at most. The first steps of a way warm it up, and give the cost model its measured passes.
Ranks stay from way to way, with their weights and what they compiled. `--longest` tries instead which sample
is the longest that trains.

    python -m tests.bench.hdp_step --shape 1.7b --ranks 4 --lengths 7.3k --cap 8192     on GPUs
    python -m tests.bench.hdp_step --shape tiny --ranks 2 --lengths tiny --cap 128      on CPUs
"""

import argparse
import json
import os
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from rljob_api import RLJob
from rljob_runtime.samples import Group, Sample, Span
from rljob_runtime.simulate.workload import LengthModel
from tests.bench.figures import RESULTS, Figure, record
from tests.bench.hdp_plan import SETS
from tests.bench.rank_pool import RankPool

LENGTHS = SETS | {"tiny": LengthModel(80, 240, 0.8, 0.4, prompt_tokens=8)}
SHAPES: dict[str, dict[str, int]] = {
    name: {
        "hidden_size": hidden, "intermediate_size": inner, "num_hidden_layers": layers,
        "num_attention_heads": heads, "num_key_value_heads": shared, "head_dim": size, "vocab_size": words,
    }
    for name, (hidden, inner, layers, heads, shared, size, words) in {
        "tiny": (64, 192, 2, 4, 2, 32, 512),
        "0.6b": (1024, 3072, 28, 16, 8, 128, 151936),
        "1.7b": (2048, 6144, 28, 16, 8, 128, 151936),
        "4b": (2560, 9728, 36, 32, 8, 128, 151936),
        "8b": (4096, 12288, 36, 32, 8, 128, 151936),
        "14b": (5120, 17408, 40, 40, 8, 128, 151936),
        "32b": (5120, 25600, 64, 64, 8, 128, 151936),
    }.items()
}  # fmt: skip
NEED = "need"
_LIMIT_SECONDS = 1500.0
"""For a way, or for a try of one length."""
_LARGEST = 2**20
"""Tokens of the longest sample that is tried: what the models have positions for."""


def ways(ranks: int, cap: int, longest: int) -> Iterator[tuple[str, dict[str, Any]]]:
    """The `contextParallel` of each way, by its name."""
    if longest <= cap:
        yield "none", {"none": {}}
    degree = 2
    while degree <= ranks:
        if longest <= cap // 2 * 2 * degree:
            for attention in ("allGather", "ulysses"):
                yield f"{degree}, {attention}", {"fixed": {"degree": degree}, "attention": attention}
        degree *= 2
    yield NEED, {"hybrid": {}}
    yield f"{NEED}, ulysses", {"hybrid": {}, "attention": "ulysses"}
    if ranks > 2:
        yield f"{NEED}, by two at most", {"hybrid": {"largestDegree": 2}}


def job(options: argparse.Namespace, sharing: dict[str, Any], longest: int) -> RLJob:
    training = {
        "model": {
            "random": {"vocabularySize": 64, "maxPositionEmbeddings": _LARGEST},
            "dtype": "bfloat16" if options.gpu else "float32",
        }
        | json.loads(options.model),
        "tokenizer": {"characters": {}},
        "data": {"generated": {"task": "copy"}, "maxPromptTokens": 128},
        "reward": {"function": "rljob_runtime.rewards.tasks:copy"},
        "rollout": {"engine": {"vllm": {}}, "samplesPerPrompt": 16, "maxResponseTokens": longest - 128},
        "optimizer": {"learningRate": 1e-6},
        "schedule": {"totalSteps": 100, "promptsPerBatch": max(1, options.samples // 16)},
        "parallel": {"maxTokensPerMicroBatch": options.cap, "contextParallel": sharing},
        "profiling": {"events": False},
        "compute": json.loads(options.compute),
    }
    described = {"accelerator": "nvidia" if options.gpu else "cpu", "training": training}
    size = "acceleratorsPerWorker" if options.gpu else "replicas"
    described["pools"] = {"trainer": {size: options.ranks}}
    return RLJob.model_validate({"metadata": {"name": "bench"}, "spec": described})


def make_groups(options: argparse.Namespace, step: int) -> list[Group]:
    model = LENGTHS[options.lengths]
    drawn = model.draw(max(1, options.samples // 16), 16, step)
    lengths = drawn.lengths.clip(max=model.cap - drawn.prompt_tokens[:, None])
    return [
        group_of(uid, step, int(prompt), row.tolist())
        for uid, (prompt, row) in enumerate(zip(drawn.prompt_tokens, lengths, strict=True))
    ]


def group_of(uid: int, step: int, prompt: int, lengths: list[int]) -> Group:
    rng = np.random.default_rng([step, uid])

    def tokens(count: int) -> Any:
        return rng.integers(0, 64, count).astype(np.int32)

    samples = tuple(
        Sample(
            tokens(length), np.full(length, -4.0, np.float32), (Span(step, 0, length),), "length",
            float(rng.random()),
        )
        for length in lengths
    )  # fmt: skip
    return Group(uid, 0, uid, tokens(prompt), samples, step)


def write_model(options: argparse.Namespace, folder: Path) -> None:
    """A random model of the shape, made on the device."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    config = AutoConfig.for_model(
        "qwen3", **SHAPES[options.shape], max_position_embeddings=_LARGEST, tie_word_embeddings=True
    )
    torch.manual_seed(0)
    with torch.device("cuda" if options.gpu else "cpu"):
        model = AutoModelForCausalLM.from_config(
            config, dtype=torch.bfloat16 if options.gpu else torch.float32
        )
    model.save_pretrained(folder)
    del model
    if options.gpu:
        torch.cuda.empty_cache()


class Task(NamedTuple):
    """What the ranks of a way do."""

    options: argparse.Namespace
    job: str
    model: Path
    shared: bool
    """Whether ranks share samples."""
    sizes: list[int]
    """Lengths of the samples of one step; empty: drawn ones, for several steps."""
    until: float
    """By time.time: one counted step is enough then."""
    times: int = 1
    """How often the one step with `sizes` is made."""


_kept: dict[bool, Any] = {}
"""This process's rank, by whether it shares samples: ways that do differ in nothing but their plans."""


def train(number: int, meeting: Path, task: Task) -> list[dict[str, Any]]:
    """A way on one rank; what each step took."""
    import torch
    import torch.distributed as dist

    options = task.options
    worker = _worker(number, meeting, task)
    rows: list[dict[str, Any]] = []
    for step in range(task.times if task.sizes else options.warm + options.steps):
        if task.sizes:
            groups = [group_of(0, 0, 128, [size - 128 for size in task.sizes])]
        else:
            groups = make_groups(options, step)
        tokens = sum(len(group.prompt) + len(each.tokens) for group in groups for each in group.samples)
        late = torch.tensor([int(time.time() > task.until)])
        # Also a barrier.
        dist.all_reduce(late, op=dist.ReduceOp.MAX)
        if int(late) and not task.sizes and step > options.warm:
            break
        if options.gpu:
            torch.cuda.reset_peak_memory_stats()
        start, graphs = time.perf_counter(), compiled_graphs()
        metrics = worker.train_step(step, step, groups if number == 0 else None)
        # Also a barrier.
        compiled = torch.tensor([compiled_graphs() - graphs])
        dist.all_reduce(compiled, op=dist.ReduceOp.MAX)
        seconds = time.perf_counter() - start
        rows.append(
            {
                "seconds": seconds, "tokens": tokens, "rate": tokens / seconds, "loss": metrics.loss,
                "grad_norm": metrics.grad_norm, "compiled": int(compiled),
                "expected": metrics.passes.expected_seconds, "passes": metrics.passes.seconds,
                "memory": torch.cuda.max_memory_allocated() / 2**30 if options.gpu else 0.0,
            }
        )  # fmt: skip
        if number == 0:
            say("  step", step, json.dumps(rows[-1]), json.dumps(metrics.seconds))
    return rows


def compiled_graphs() -> int:
    """How many torch has compiled in this process."""
    from torch._dynamo.utils import counters

    return int(counters["stats"]["unique_graphs"])


def _worker(number: int, meeting: Path, task: Task) -> Any:
    """This rank, set up for the job: the one that was there where it can do it."""
    import gc

    import torch
    import torch.distributed as dist

    from rljob_runtime.site import process_log
    from rljob_runtime.trace.record.event_log import EventLog
    from rljob_runtime.trainer.rank import TrainerWorker

    # A rank's log tells what was compiled anew, and why.
    process_log.begin()
    options, job = task.options, RLJob.model_validate_json(task.job)
    if task.shared in _kept and not task.sizes:
        worker = _kept[task.shared]
        worker._job = job
        worker._steps = worker._runner(None, None)
        return worker
    for old in list(_kept):
        _kept.pop(old).close()
    gc.collect()
    if options.gpu:
        torch.cuda.empty_cache()
        torch.set_num_threads(max(1, len(os.sched_getaffinity(0)) // options.ranks))
    worker = TrainerWorker(
        job, task.model, number, options.ranks, meeting.with_name("weights"), 2,
        EventLog(None, number, f"trainer-{number}", "trainer"), 100, number if options.gpu else 0,
        own_device=options.gpu,
    )  # fmt: skip
    start = time.perf_counter()
    worker.setup(dist.FileStore(str(meeting), options.ranks))
    if number == 0:
        say("  set up in", round(time.perf_counter() - start, 1), "s")
    _kept[task.shared] = worker
    return worker


def run(
    pool: RankPool, options: argparse.Namespace, made: RLJob, model: Path, sizes: list[int] | None = None
) -> list[dict[str, Any]] | str:
    """The rows of rank 0, with the memory of the rank that took most; or what went wrong."""
    described = made.model_dump_json(by_alias=True, exclude_none=True)
    shared = made.spec.context_parallel.largest_degree(options.ranks) > 1
    task = Task(options, described, model, shared, sizes or [], options.until)
    found = pool.run(_LIMIT_SECONDS, train, task)
    if isinstance(found, str):
        return found
    for row, others in zip(found[0], zip(*found, strict=True), strict=True):
        row["memory"] = max(each["memory"] for each in others)
    return found[0]  # type: ignore[no-any-return]


def compare(pool: RankPool, options: argparse.Namespace, model: Path) -> None:
    """Shared by need, and then each other way against it, told and written as soon as it is measured."""
    longest = LENGTHS[options.lengths].cap
    what = f"{options.shape}, {options.ranks} ranks, {options.lengths} mean, {options.cap} on a rank"
    if options.said:
        what += f", {options.said}"
    goals = {"7.3k": "at least 1.1 x all ranks", "1.5k": "at least 1.2 x all ranks"}
    by_need: list[dict[str, Any]] = []
    chosen = dict(ways(options.ranks, options.cap, longest))
    for name in sorted(chosen, key=lambda way: way != NEED):
        if options.only and name not in {NEED, *options.only}:
            continue
        if time.time() > options.until:
            say("no time for", options.lengths, name)
            continue
        say(options.lengths, "shared by", name)
        rows = run(pool, options, job(options, chosen[name], longest), model)
        if isinstance(rows, str):
            say(rows)
            continue
        memory = max(row["memory"] for row in rows)
        if name == NEED:
            by_need = rows
            steps = counted_steps(options.warm, rows)
            say("  tokens/s:", round(rate_of(rows, steps)), "in steps", *steps)
            if steps:
                told(options, [Figure(f"{what}: shared by need", rate_of(rows, steps), "tokens/s")])
        # Steps have other samples: a rate is compared with that of the same ones.
        elif steps := counted_steps(options.warm, rows, by_need):
            goal = goals.get(options.lengths) if name.startswith(f"{options.ranks},") else "at least 0.98 x"
            mine, other = rate_of(by_need, steps), rate_of(rows, steps)
            said = f"{what}: shared by need, against {name}, in {len(steps)} steps"
            told(options, [Figure(said, mine, "tokens/s", other, goal)])
            told(options, predicted(f"{what}: {name}", by_need, rows, steps))
        else:
            say("  no step that was without a compilation in both")
        if options.gpu:
            told(options, [Figure(f"{what}: {name}: memory of the fullest rank", memory, "GiB")])


def counted_steps(warm: int, *ways: list[dict[str, Any]]) -> list[int]:
    """The steps after the first `warm` ones that all of these ways did without compiling anything."""
    return [
        step for step in range(warm, min(map(len, ways))) if not any(rows[step]["compiled"] for rows in ways)
    ]


def rate_of(rows: list[dict[str, Any]], steps: list[int]) -> float:
    """Tokens per second over these steps; 0 for none."""
    seconds = sum(rows[step]["seconds"] for step in steps)
    return float(sum(rows[step]["tokens"] for step in steps) / seconds) if steps else 0.0


def predicted(
    name: str, by_need: list[dict[str, Any]], rows: list[dict[str, Any]], steps: list[int]
) -> list[Figure]:
    """How many times as long as those by need the passes of another way take by each one's cost model, beside
    what they took; nothing where a step had no cost model yet."""
    if any(each[step]["expected"] is None for each in (by_need, rows) for step in steps):
        return []
    expected, took = (
        sum(rows[step][key] for step in steps) / sum(by_need[step][key] for step in steps)
        for key in ("expected", "passes")
    )
    return [
        Figure(f"{name}: passes, times as long as by need, predicted, beside measured", expected, "x", took)
    ]


def told(options: argparse.Namespace, figures: list[Figure]) -> None:
    if options.file:
        record(options.file, figures, options.out, keep=True)
        return
    for figure in figures:
        say(figure.name, f"{figure.value:.6g}", figure.unit, figure.ratio and f"{figure.ratio:.3f} x")


def longest(pool: RankPool, options: argparse.Namespace, model: Path) -> None:
    """By doubling, then halving, to an eighth, or until the time is up."""
    fits, above, size = 0, 0, options.longest_from or 2 * options.ranks * 1024
    while (
        size <= _LARGEST
        and (not above or above - fits > max(fits // 8, 1024))
        and time.time() < options.until
    ):
        options.cap = -(-size // options.ranks // 2) * 2
        sharing: dict[str, Any] = {"hybrid": {}} if options.ranks > 1 else {"none": {}}
        rows = run(pool, options, job(options, sharing, size), model, [size, 136])
        good = not isinstance(rows, str)
        say(f"a sample of {size} tokens", "trains" if good else str(rows).strip().splitlines()[-1])
        fits, above = (size, above) if good else (fits, size)
        what = f"{options.shape}, {options.ranks} ranks{options.said and ', ' + options.said}"
        if good:
            told(options, [Figure(f"{what}: longest sample that was seen to train", fits, "tokens")])
        else:
            told(options, [Figure(f"{what}: shortest sample that did not", above, "tokens")])
        size = 2 * size if not above else (fits + above) // 2 // 256 * 256


def say(*words: object) -> None:
    print(*words, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--shape", choices=SHAPES, default="1.7b")
    parser.add_argument("--ranks", type=int, required=True)
    parser.add_argument("--lengths", choices=LENGTHS, action="append", help="may be given several times")
    parser.add_argument("--cap", type=int, default=8192, help="tokens of a pass on a rank")
    parser.add_argument("--samples", type=int, default=512, help="of a step")
    parser.add_argument("--warm", type=int, default=2, help="steps before those that count")
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--only", action="append", help="a way, by its name; may be given several times")
    parser.add_argument("--model", default="{}", help="fields of training.model, as JSON")
    parser.add_argument("--compute", default="{}", help="fields of training.compute, as JSON")
    parser.add_argument("--longest", action="store_true", help="the longest sample that trains")
    parser.add_argument("--longest-from", type=int, help="tokens of the first that is tried")
    parser.add_argument("--seconds", type=float, default=3600.0, help="nothing is begun later than this")
    parser.add_argument("--said", default="", help="what the figures' names say of --model and --compute")
    parser.add_argument("--file", help="of the results; default: nothing is written")
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder of the results")
    options = parser.parse_args()
    import torch

    # Ends the ranks, too.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended by a signal"))
    options.until = time.time() + options.seconds
    options.gpu = torch.cuda.is_available()
    pool = RankPool(options.ranks)
    try:
        with tempfile.TemporaryDirectory() as folder:
            model = Path(folder) / "model"
            write_model(options, model)
            say("the model is written")
            if options.longest:
                longest(pool, options, model)
                return
            for lengths in options.lengths or ["7.3k"]:
                compare(pool, argparse.Namespace(**vars(options) | {"lengths": lengths}), model)
    finally:
        pool.close()


if __name__ == "__main__":
    main()
