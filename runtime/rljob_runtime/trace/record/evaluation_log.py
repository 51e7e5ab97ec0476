"""What evaluations found: `evaluations.jsonl` in the run's folder, a JSON object for each, and
`evaluation_samples.jsonl`, some of their responses.

Guarantees:
- steps ascend, and no step has two evaluations: where training goes back to an earlier step, what is recorded
  of later ones is cut off;
- an evaluation is recorded whole, in one write, or not at all; its responses are written before it;
- `evaluations.jsonl` has `MOST_BYTES` at most: before it would have more, every second of its lines goes, of
  all but the newest quarter, again and again until it is half as large;
- an evaluation that cannot be written raises; its responses that cannot be end with one warning.
"""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec
import numpy as np

from rljob_runtime.evaluation.scores import SetScore
from rljob_runtime.trace.record.event_log import Time, append_line
from rljob_runtime.trace.record.sample_log import SampleLine, SampleLog
from rljob_runtime.trace.record.thinning import thinned_between
from rljob_runtime.trace.record.whole_lines import whole_lines

EVALUATIONS_FILE = "evaluations.jsonl"
EVALUATION_SAMPLES_FILE = "evaluation_samples.jsonl"
EVALUATION_CURVES = "evaluation/"
"""With this the name of each curve of an evaluation begins, and of no other."""
MOST_BYTES = 16 << 20
"""Most bytes of `evaluations.jsonl`."""


class EvaluationLine(msgspec.Struct, frozen=True, kw_only=True):
    """One evaluation."""

    step: int
    """Steps that the evaluated weights have behind them."""
    version: int
    """Their weight version."""
    time: Time
    """When it was over."""
    seconds: float
    """How long it took."""
    sets: dict[str, SetScore]
    """By the set's name."""
    engines: int = 0
    """How many engines were set aside for it when it began; 0: it ran on those that train."""


_line_decoder = msgspec.json.Decoder(EvaluationLine)


class EvaluationLog:
    """Records a run's evaluations. `begin` comes before the first `write`."""

    def __init__(self, folder: Path, most_bytes: int = MOST_BYTES) -> None:
        """`folder` is the run's."""
        self._most_bytes = most_bytes
        self.newest: EvaluationLine | None = None
        """The newest one that counts."""
        self._path = folder / EVALUATIONS_FILE
        self._samples = SampleLog(folder, file=EVALUATION_SAMPLES_FILE)

    def begin(self, step: int) -> None:
        """Training begins, or goes on, after `step` steps. Raises `OSError`."""
        self.newest, whole = None, 0
        for line, size in _lines(self._path):
            if line is not None and line.step > step:
                break
            whole += size
            self.newest = line or self.newest
        if self._path.exists():
            os.truncate(self._path, whole)
        # Also those of an evaluation that was not recorded in the end.
        self._samples.begin(0 if self.newest is None else self.newest.step + 1)

    def write(self, line: EvaluationLine, samples: Sequence[SampleLine]) -> None:
        """Record an evaluation, and what is kept of it. Raises `OSError`."""
        self._samples.write(samples)
        text = msgspec.json.encode(line)
        if self._path.exists() and self._path.stat().st_size + len(text) >= self._most_bytes:
            self._thin_out()
        append_line(self._path, text)
        self.newest = line

    def _thin_out(self) -> None:
        most, lines = self._most_bytes, self._path.read_bytes().splitlines(keepends=True)
        sizes = np.array([len(line) for line in lines])
        stays = thinned_between(sizes, most // 2, first=0, newest=most // 4)
        shorter = self._path.with_suffix(".tmp")
        shorter.write_bytes(b"".join(line for line, stay in zip(lines, stays, strict=True) if stay))
        # By renaming: a kill leaves the file as it was, or as it is to be.
        shorter.replace(self._path)


def read_evaluations(folder: Path) -> list[EvaluationLine]:
    """The evaluations of the run in `folder`, in order of steps; none where there is no file. Raises
    `OSError`."""
    return [line for line, _ in _lines(folder / EVALUATIONS_FILE) if line is not None]


def scalars(line: EvaluationLine) -> Mapping[str, float]:
    """The numbers that are curves, by their names in TensorBoard."""
    found: dict[str, float] = {}
    for name, score in line.sets.items():
        curves = f"{EVALUATION_CURVES}{name}"
        if score.mean is not None:
            found[f"{curves}/mean"] = score.mean
        found |= {f"{curves}/pass@{k}": share for k, share in score.pass_at.items()}
        found[f"{curves}/response_length"] = score.response_length_mean
        found |= {f"{curves}/parts/{part}": value for part, value in score.parts.items()}
        found |= {f"{curves}/metrics/{metric}": value for metric, value in score.metrics.items()}
    return found


def in_words(line: EvaluationLine) -> str:
    """`evaluation after step 20: gsm mean 0.41, pass@1 0.4, pass@4 0.63`."""
    sets = []
    for name, score in line.sets.items():
        numbers = ["no rewards" if score.mean is None else f"mean {score.mean:.3g}"]
        numbers += [f"pass@{k} {share:.3g}" for k, share in score.pass_at.items() if k in _told(score)]
        sets.append(f"{name} {', '.join(numbers)}")
    return f"evaluation after step {line.step}: {'; '.join(sets)}"


def failing(line: EvaluationLine) -> list[str]:
    """For each set most of whose responses have no reward: that its numbers say nothing of the model."""
    when = f"after step {line.step}" if line.step else "of the initial weights"
    return [
        f"evaluation {when}: the reward failed for {score.failed:,} of {score.responses:,} responses of "
        f"{name}, whose numbers say nothing of the model; the first failure: {score.first_failure}"
        for name, score in line.sets.items()
        if score.mostly_failed
    ]


def _told(score: SetScore) -> set[int]:
    return {min(score.pass_at), max(score.pass_at)}


def _lines(path: Path) -> list[tuple[EvaluationLine | None, int]]:
    """The whole lines of the file, each with its size in bytes; None for what is no evaluation."""
    try:
        return [(found, len(line)) for found, line in whole_lines(path, _line_decoder)]
    except FileNotFoundError:
        return []
