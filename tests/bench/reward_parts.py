"""What it costs that a reward has parts: per step, as a share of a step.

The small step is that of `examples/copy.yaml`, as in `event_overhead`: 32 prompts of 8 responses, generated
and trained in plain torch on one CPU thread; a job takes longer for it, so that the share is an upper bound.
What is measured is all that is done with a function's answers beside the function: the worker reads them and
sends them, the driver checks their names and puts them into groups, which go to the queue, the trainer takes
them from there, shares their outlines out to its ranks and makes the step's means. Once the function returns
a number, once a dict of 4 parts and 2 metrics; the two alternate. Text that is kept of them is measured by
`sample_overhead`. Time is processor time, which other processes on the machine do not change.

    OMP_NUM_THREADS=1 python -m tests.bench.reward_parts
"""

import statistics
import time
from typing import Any

import numpy as np
import torch

from rljob_runtime.rewards.frames import Result, frame, from_worker
from rljob_runtime.rewards.outcome import outcome_of
from rljob_runtime.rewards.part_names import PartNames
from rljob_runtime.rewards.process import score_of
from rljob_runtime.samples import Group, Sample, Span, decode_group, encode
from rljob_runtime.trainer.batch import describe
from rljob_runtime.trainer.outline import decode_outlines, encode_outlines, outline_of
from tests.bench.event_overhead import GROUPS, SAMPLES
from tests.bench.figures import Figure, parser, record
from tests.bench.sample_overhead import step_seconds

ROUNDS = 60
TOKENS = 8
PARTS: dict[str, Any] = {
    "parts": {"correct": 1.0, "format": 0.2, "brevity": -0.1, "units": 0.5},
    "metrics": {"words": 12, "depth": None},
}


def step(answer: Any, groups: int, samples: int) -> float:
    """Processor seconds of what is done with the answers of one step's responses."""
    tokens, log_probs = np.arange(TOKENS, dtype=np.int32), np.zeros(TOKENS, np.float32)
    spans, names, frames = (Span(0, 0, TOKENS),), PartNames(), []
    began = time.process_time()
    for uid in range(groups):
        scored = []
        for number in range(samples):
            outcome = outcome_of(answer)
            sent = Result(
                number, outcome.value, None, 0.001, outcome.parts, outcome.metrics, outcome.complaints
            )
            score = names.admit(score_of(from_worker.decode(frame(sent)[4:]), waited=0.0))
            scored.append(
                Sample(
                    tokens, log_probs, spans, "stop", score.value, None, "fast-0", 1.0,
                    score.parts, score.metrics, len(score.complaints),
                )
            )  # fmt: skip
        frames.append(encode(Group(uid, 0, uid, tokens, tuple(scored), 0)))
    outlines = [outline_of(decode_group(each)) for each in frames]
    describe(decode_outlines(encode_outlines(outlines)), 0)
    return time.process_time() - began


def medians(groups: int, samples: int, rounds: int) -> tuple[float, float]:
    """Processor seconds with a number, and with parts."""
    took: tuple[list[float], list[float]] = ([], [])
    for _ in range(rounds):
        for seconds, answer in zip(took, (1.0, PARTS), strict=True):
            seconds.append(step(answer, groups, samples))
    return statistics.median(took[0]), statistics.median(took[1])


def main() -> None:
    """Measure and record."""
    out = parser(__doc__).parse_args().out
    torch.set_num_threads(1)
    whole = step_seconds()
    number, parts = medians(GROUPS, SAMPLES, ROUNDS)
    number_large, parts_large = medians(128, 16, ROUNDS // 4)
    record(
        "reward_parts",
        [
            Figure("256 responses with 4 parts and 2 metrics", parts * 1e3, "ms", baseline=number * 1e3),
            Figure("what the parts add, of a small step", (parts - number) / whole * 100, "% of the step",
                   goal="< 1 %"),
            Figure("what the parts add, of a response", (parts - number) / (GROUPS * SAMPLES) * 1e6, "µs"),
            Figure("2048 responses with 4 parts and 2 metrics", parts_large * 1e3, "ms",
                   baseline=number_large * 1e3),
        ],
        out,
    )  # fmt: skip


if __name__ == "__main__":
    main()
