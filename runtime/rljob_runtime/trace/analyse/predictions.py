"""What routing expected of responses when it placed them, against how long they became.

Read from `lengths.jsonl`. Errors are of the logarithm: e times too long and e times too short are errors of
1. Guarantees: memory does not grow with the number of responses, but for the versions of the weights; equal
files give equal results; a file without expectations, and one that is no length trace, give none.
"""

import contextlib
import math
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from rljob_runtime.net.messages import decode_typed
from rljob_runtime.trace.analyse.sketch import Sketch

POINTS = 400
"""Responses that are kept one by one."""


class _Line(msgspec.Struct, gc=False):
    """What is looked at of a line of the file."""

    response_tokens: int
    expected: int | None = None
    cut: int | None = None
    pool: str = ""
    version: int | None = None


class _Header(msgspec.Struct):
    """What is looked at of the first line."""

    removed: int = 0


_line_decoder = msgspec.json.Decoder(_Line)
_header_decoder = msgspec.json.Decoder(_Header)


@dataclass
class Calls:
    """Responses by whether they were called long when they were placed, and whether they became long. Only
    those that were placed while some lengths counted as long."""

    rightly_long: int = 0
    wrongly_long: int = 0
    missed: int = 0
    """Called not long, and long."""
    missed_to_heavy: int = 0
    """Those of them that ended on the heavy pool all the same."""
    rightly_short: int = 0

    @property
    def count(self) -> int:
        return self.rightly_long + self.wrongly_long + self.missed + self.rightly_short

    def add(self, line: _Line, expected: int, cut: int) -> None:
        """Count one."""
        called, was = expected >= cut, line.response_tokens >= cut
        if called and was:
            self.rightly_long += 1
        elif called:
            self.wrongly_long += 1
        elif was:
            self.missed += 1
            self.missed_to_heavy += line.pool == "heavy"
        else:
            self.rightly_short += 1


@dataclass
class Predictions:
    """See the module."""

    lengths: Sketch = field(default_factory=Sketch)
    """Of all responses of which something was expected, in tokens."""
    errors: float = 0.0
    """Sum of the absolute errors."""
    expected: int = 0
    """Sum of the expected tokens."""
    by_expected: dict[int, Sketch] = field(default_factory=dict)
    """Real lengths, by the power of 2 that the expected one is nearest to."""
    by_version: dict[int, tuple[int, float]] = field(default_factory=dict)
    """Number of responses and sum of their absolute errors, by the version of the weights that they began
    with."""
    points: list[tuple[int, int]] = field(default_factory=list)
    """Some responses, evenly over the file: expected tokens and real ones."""
    calls: Calls = field(default_factory=Calls)
    removed: int = 0
    """Groups whose lines are not in the file any more."""
    _stride: int = 1
    """Every so many-th response is kept."""

    @property
    def count(self) -> int:
        return self.lengths.count

    @property
    def mean_error(self) -> float:
        """Mean absolute error of the logarithm."""
        return self.errors / self.count if self.count else 0.0

    @property
    def ratio(self) -> float:
        """Expected tokens over real ones, all together. 1 is right: what is expected is a mean."""
        return self.expected / max(1.0, self.lengths.total)

    @property
    def error_of_one_guess(self) -> float:
        """What the mean absolute error would be, had the run's mean length been expected of every response,
        which is known at the end only."""
        mean = math.log(max(1.0, self.lengths.mean))
        before, total = 0.0, 0.0
        for value, share in self.lengths.curve(1000):
            total += (share - before) * abs(math.log(max(1.0, value)) - mean)
            before = share
        return total

    def add(self, line: _Line) -> None:
        """Count one response, if something was expected of it."""
        if line.expected is None:
            return
        expected, real = max(1, line.expected), max(1, line.response_tokens)
        error = abs(math.log(expected / real))
        if self.count % self._stride == 0:
            self._keep(expected, real)
        self.lengths.add(real)
        self.errors += error
        self.expected += expected
        place = round(math.log2(expected))
        if place not in self.by_expected:
            self.by_expected[place] = Sketch()
        self.by_expected[place].add(real)
        if line.version is not None:
            count, total = self.by_version.get(line.version, (0, 0.0))
            self.by_version[line.version] = count + 1, total + error
        if line.cut is not None:
            self.calls.add(line, expected, line.cut)

    def _keep(self, expected: int, real: int) -> None:
        if len(self.points) == POINTS:
            # Every second one goes, and from here on half as many come.
            self.points = self.points[::2]
            self._stride *= 2
            if self.count % self._stride:
                return
        self.points.append((expected, real))


def read_predictions(path: Path) -> Predictions:
    """The predictions in the length trace at `path`; none where there is no file."""
    found = Predictions()
    try:
        with path.open("rb") as file:
            with contextlib.suppress(msgspec.DecodeError):
                found.removed = decode_typed(_header_decoder, file.readline()).removed
            for text in file:
                try:
                    found.add(decode_typed(_line_decoder, text))
                except msgspec.DecodeError:
                    # Cut off, or of another form: what reads traces says so, a report goes on without.
                    continue
    except OSError:
        return Predictions()
    return found
