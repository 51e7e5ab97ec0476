"""What it costs to keep what the model says: per step, as a share of a step, and how long its pieces
are, between which the driver's loop goes on (medians over steps).

The small step is that of `examples/copy.yaml`, as in `event_overhead`: 32 prompts of 8 responses, generated
and trained in plain torch on one CPU thread; a job takes longer for it, so that the share is an upper bound.
The large one has 128 prompts of 16 responses of 4096 tokens, read by a Hugging Face tokenizer. Both keep the
default number of responses. Time is processor time, which other processes on the machine do not change.

    OMP_NUM_THREADS=1 python -m tests.bench.sample_overhead
"""

import statistics
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch

from rljob_api.algorithm import Algorithm
from rljob_api.schedule import Profiling
from rljob_runtime.data.tokenizer import CharacterTokenizer, FolderTokenizer, TextTokenizer
from rljob_runtime.driver.sample_keeper import SampleKeeper
from rljob_runtime.groups.staleness import Bound
from rljob_runtime.objective.advantages import estimator
from rljob_runtime.samples import Group, Sample, Span, encode
from rljob_runtime.trace.record.event_log import EventLog
from rljob_runtime.trace.record.sample_log import SAMPLES_FILE, SampleLog
from tests.bench.event_overhead import GROUPS, SAMPLES, VOCABULARY, Model, generate, train
from tests.bench.figures import Figure, parser, record

LETTERS = CharacterTokenizer("abcdefghijklmnopqrstuvwxyz 0123456789\n")
STEPS = 40


class Groups:
    """A step's groups as the outbox has them."""

    def __init__(self, groups: int, samples: int, tokens: int) -> None:
        rng = np.random.default_rng(0)
        self.frames = [
            encode(_group(uid, [rng.integers(4, 40, tokens) for _ in range(samples)], rng))
            for uid in range(groups)
        ]

    def frames_of(self, uids: Sequence[int]) -> list[bytes]:
        return [self.frames[uid] for uid in uids]


def _group(uid: int, responses: Sequence[Any], rng: np.random.Generator) -> Group:
    samples = tuple(
        Sample(
            tokens.astype(np.int32), np.zeros(len(tokens), np.float32), (Span(0, 0, len(tokens)),), "stop",
            float(rng.random()), None, "fast-0", 1.0,
        )
        for tokens in responses
    )  # fmt: skip
    return Group(uid, 0, uid, rng.integers(4, 40, 32).astype(np.int32), samples, 0)


def keeping(
    folder: Path, groups: Groups, tokenizer: TextTokenizer, steps: int
) -> tuple[list[float], list[float]]:
    """Processor seconds of each step, and of the piece of each that took longest."""
    took: list[float] = []
    longest: list[float] = []
    pieces: list[float] = []

    def measured(coroutine: Any) -> None:
        """What the loop would do beside the step."""
        try:
            while True:
                began = time.process_time()
                coroutine.send(None)
                pieces.append(time.process_time() - began)
        except StopIteration:
            pieces.append(time.process_time() - began)

    # A job's tokenizer has scored by then: what it loads at its first use does not count.
    tokenizer.transcribe(np.zeros(1, np.int32))
    keeper = SampleKeeper(
        Profiling().samples_per_step, SampleLog(folder), cast(Any, groups), tokenizer, Bound(1, 1),
        estimator(Algorithm()), 0, measured, time.time,
    )  # fmt: skip
    keeper.begin(0)
    for step in range(steps):
        pieces.clear()
        keeper.step_begins(step, range(len(groups.frames)))
        began = time.process_time()
        keeper.step_done()
        pieces.append(time.process_time() - began)
        took.append(sum(pieces))
        longest.append(max(pieces))
    return took, longest


def step_seconds() -> float:
    """Processor seconds of the small step."""
    torch.manual_seed(0)
    model, events = Model(), EventLog(None, 0, "trainer-0", "trainer")
    optimizer = torch.optim.AdamW(model.parameters())
    prompts = torch.randint(0, VOCABULARY, (GROUPS * SAMPLES, 8))
    took = []
    for step in range(STEPS):
        began = time.process_time()
        train(model, optimizer, generate(model, prompts, events, step), events, step)
        took.append(time.process_time() - began)
    return statistics.median(took)


def main() -> None:
    """Measure and record."""
    out = parser(__doc__).parse_args().out
    torch.set_num_threads(1)
    step = step_seconds()
    with tempfile.TemporaryDirectory() as name:
        small, large = Path(name, "small"), Path(name, "large")
        for folder in (small, large):
            folder.mkdir()
        LETTERS.save_pretrained(large)
        took, longest = keeping(small, Groups(GROUPS, SAMPLES, 8), LETTERS, STEPS)
        took_large, longest_large = keeping(large, Groups(128, 16, 4096), FolderTokenizer(large), 5)
        bytes_large = (large / SAMPLES_FILE).stat().st_size / 5
    kept = statistics.median(took)
    record(
        "sample_overhead",
        [
            Figure("keeping 32 of 256 responses of 8 tokens", kept * 1e3, "ms of processor time"),
            Figure("the same, of a step", kept / step * 100, "% of the step", goal="< 1 %"),
            Figure("longest piece of it, small step", statistics.median(longest) * 1e3, "ms"),
            Figure(
                "keeping 32 of 2048 responses of 4096 tokens",
                statistics.median(took_large) * 1e3,
                "ms of processor time",
            ),
            Figure("longest piece of it, large step", statistics.median(longest_large) * 1e3, "ms"),
            Figure("written for such a step", bytes_large / 1e3, "kB"),
        ],
        out,
    )


if __name__ == "__main__":
    main()
