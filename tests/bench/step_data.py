"""What the data of one training step costs: bytes and seconds, from the rollouter to the trainer's ranks.

A step of a million response tokens by default: groups of 8 responses of 1,000 to 3,000 tokens. Baseline, for
what ranks get: every rank gets and decodes all of it. One process: what the network takes is not measured,
its bytes are counted.

    python tests/bench/step_data.py
"""

import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[2]))
from rljob_api.algorithm import Algorithm
from rljob_runtime.objective.advantages import estimator
from rljob_runtime.parallel.micro_batches import plan_micro_batches
from rljob_runtime.samples import Group, Sample, Span, decode_group, encode
from rljob_runtime.trainer import group_scatter
from rljob_runtime.trainer.batch import responses_of
from rljob_runtime.trainer.outline import decode_outlines, encode_outlines, outline_of
from tests.bench.figures import Figure, parser, record

T = TypeVar("T")
SAMPLES, PROMPT, VOCABULARY = 8, 200, 150_000
CAP = 16_384


def group(uid: int, rng: np.random.Generator) -> Group:
    """A group whose responses met one change of the weights."""

    def sample() -> Sample:
        length = int(rng.integers(1_000, 3_000))
        return Sample(
            tokens=rng.integers(0, VOCABULARY, length).astype(np.int32),
            log_probs=rng.standard_normal(length).astype(np.float32),
            spans=(Span(3, 0, length // 2), Span(4, length // 2, length)),
            finish="stop",
            reward=float(rng.random()),
        )

    prompt = rng.integers(0, VOCABULARY, PROMPT).astype(np.int32)
    return Group(uid, 0, uid, prompt, tuple(sample() for _ in range(SAMPLES)), 3)


def best(work: Callable[[], T], repeats: int) -> tuple[float, T]:
    """Seconds of the fastest of some runs, and the last one's result."""
    seconds = []
    for _ in range(repeats):
        began = time.perf_counter()
        result = work()
        seconds.append(time.perf_counter() - began)
    return min(seconds), result


def main() -> None:
    command = parser(__doc__)
    command.add_argument("--tokens", type=int, default=1_000_000, help="response tokens of the step")
    command.add_argument("--ranks", type=int, default=8, help="ranks of the trainer")
    command.add_argument("--repeats", type=int, default=20, help="runs, of which the fastest counts")
    options = command.parse_args()
    rng = np.random.default_rng(0)
    groups = [group(uid, rng) for uid in range(max(1, options.tokens // (2_000 * SAMPLES)))]
    by_uid = {each.uid: each for each in groups}
    tokens = sum(len(sample.tokens) for each in groups for sample in each.samples)

    encoding, frames = best(lambda: [encode(each) for each in groups], options.repeats)
    whole = sum(map(len, frames))
    decoding, _ = best(lambda: [decode_group(frame) for frame in frames], options.repeats)

    made = tuple(map(outline_of, groups))
    told = encode_outlines(made)
    lengths = {outline.uid: outline for outline in made}

    estimate = estimator(Algorithm())

    def plan() -> list[list[group_scatter.Key]]:
        responses = responses_of(decode_outlines(told), estimate)
        items = [response.item for response in responses]
        shares = plan_micro_batches(items, CAP, options.ranks)
        return [
            sorted((items[index].uid, items[index].sample) for micro_batch in each for index in micro_batch)
            for each in shares
        ]

    planning, wanted = best(plan, options.repeats)
    packing, arrays = best(
        lambda: [group_scatter._packed(keys, by_uid, taught=False) for keys in wanted], options.repeats
    )
    last = len(arrays) - 1
    unpacking, _ = best(
        lambda: group_scatter._unpacked(wanted[last], lengths, arrays[last], taught=False), options.repeats
    )
    sent = sum(array.nbytes for array in arrays[1:]) + len(told) * (options.ranks - 1)
    everywhere = whole * (options.ranks - 1)

    what = f"step of {tokens:,} response tokens"
    ranks = f"{options.ranks} ranks"
    record(
        "step_data",
        [
            Figure(f"{what}, wire form", whole / 2**20, "MiB"),
            Figure(f"{what}, held by the driver and again by the queue's host", 2 * whole / 2**20, "MiB"),
            Figure(f"{what}, wire form of a token", whole / tokens, "bytes"),
            Figure(f"{what}, encoding in the driver", encoding * 1e3, "ms"),
            Figure(f"{what}, decoding on rank 0", decoding * 1e3, "ms"),
            Figure(f"{what}, outlines", len(told) / 2**10, "KiB"),
            Figure(f"{what}, to the other of {ranks}", sent / 2**20, "MiB", everywhere / 2**20),
            Figure(f"{what}, packing for {ranks} on rank 0", packing * 1e3, "ms"),
            Figure(f"{what}, split over {ranks}, on each", planning * 1e3, "ms"),
            Figure(f"{what}, unpacking on another of {ranks}", unpacking * 1e3, "ms", decoding * 1e3),
        ],
        options.out,
    )


if __name__ == "__main__":
    main()
