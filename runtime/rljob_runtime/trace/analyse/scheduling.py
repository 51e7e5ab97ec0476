"""What the engines for long responses did, which responses moved and why, and how the division changed.

Engines are told apart by what they are for: those of the heavy pool, those of the fast pool, and those of the
fast pool that were for long responses for a while. Guarantees: memory is bounded by the number of steps, of
pools and of reasons.
"""

import itertools
import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from rljob_runtime.trace.analyse.requests import Attempt, Request
from rljob_runtime.trace.analyse.sketch import Sketch
from rljob_runtime.trace.record.event_log import Event

HEAVY, LONG, FAST = "heavy", "fast, for long ones", "fast"
"""What engines are for."""


def kind_of_engine(pool: str, for_long: bool) -> str:
    """What an engine of a pool is for. Where the whole heavy pool is for long responses, that is its kind."""
    return HEAVY if pool == "heavy" else LONG if for_long else FAST


@dataclass
class Share:
    """What engines of one kind did."""

    lengths: Sketch = field(default_factory=Sketch)
    """Of the responses that ended on them, in tokens."""
    tokens: int = 0
    """Generated on them."""
    seconds: float = 0.0
    """Of the stays of responses on them."""
    moved_in: int = 0
    """Responses that came from engines of another kind."""
    moved_out: int = 0
    by_step: dict[int, int] = field(default_factory=dict)
    """Tokens of the responses that ended in each step."""


@dataclass
class Moves:
    """Responses that left an engine for one reason, from engines of one kind to those of another."""

    tokens: Sketch = field(default_factory=Sketch)
    """What they took along, in tokens."""
    pauses: Sketch = field(default_factory=Sketch)
    """Until they went on, in seconds."""


@dataclass
class DivisionOfStep:
    """How work was divided by length during a step: sums over its time, in seconds."""

    seconds: float = 0.0
    engines: float = 0.0
    """Engines for long responses, times seconds."""
    cut_seconds: float = 0.0
    """Time in which some responses counted as long."""
    log_cut: float = 0.0
    """Logarithm of the tokens from which on they did, times seconds."""

    @property
    def mean_engines(self) -> float:
        return self.engines / self.seconds if self.seconds else 0.0

    @property
    def mean_cut(self) -> float | None:
        """Geometric mean, in tokens; None where no response counted as long."""
        return math.exp(self.log_cut / self.cut_seconds) if self.cut_seconds else None


class SchedulingBook:
    """Takes all events, in order of steps, and the requests that ended in each."""

    def __init__(self) -> None:
        self.shares: dict[str, Share] = {}
        """By what engines are for."""
        self.moves: dict[tuple[str, str, str], Moves] = {}
        """By reason, and what the engines that were left and reached are for. Responses that went on on the
        same engine did not move."""
        self.moves_by_step: defaultdict[str, dict[int, int]] = defaultdict(dict)
        """By reason: moves of the responses that ended in each step."""
        self.divisions: dict[int, DivisionOfStep] = {}
        """By step."""

    def add_step(self, step: int, events: Sequence[Event], ended: Sequence[Request]) -> None:
        """Take one step's events, and the requests that ended in it."""
        self._divided(step, (event for event in events if event.event == "division"))
        # Counted by engines' kinds at the end: this runs for every request of a run.
        counted: dict[tuple[str, bool], tuple[list[int], list[int], list[float]]] = {}
        for request in ended:
            for attempt in request.attempts:
                key = attempt.pool, attempt.for_long
                if key not in counted:
                    counted[key] = [], [], []
                lengths, tokens, seconds = counted[key]
                tokens.append(attempt.tokens)
                seconds.append(attempt.seconds)
            lengths.append(request.length)
            if len(request.attempts) > 1:
                self._moved(step, request)
        for key, (lengths, tokens, seconds) in counted.items():
            share = self._share(kind_of_engine(*key))
            share.lengths.extend(lengths)
            share.tokens += sum(tokens)
            share.seconds += sum(seconds)
            share.by_step[step] = share.by_step.get(step, 0) + sum(tokens)

    @property
    def moved(self) -> int:
        """How often a response went on on another engine."""
        return sum(moves.tokens.count for moves in self.moves.values())

    def _moved(self, step: int, request: Request) -> None:
        has = 0
        for before, after in itertools.pairwise(request.attempts):
            has += before.tokens
            if before.worker == after.worker:
                continue
            source, target = _kind(before), _kind(after)
            key = before.left, source, target
            if key not in self.moves:
                self.moves[key] = Moves()
            # Not always all that it had generated: one that begins anew leaves its tokens behind.
            self.moves[key].tokens.add(has if after.had is None else after.had)
            self.moves[key].pauses.add(max(0.0, after.start - before.end))
            counts = self.moves_by_step[before.left]
            counts[step] = counts.get(step, 0) + 1
            if source != target:
                self._share(source).moved_out += 1
                self._share(target).moved_in += 1

    def _divided(self, step: int, events: Iterable[Event]) -> None:
        for event in events:
            division = self.divisions.setdefault(step, DivisionOfStep())
            division.seconds += event.duration
            division.engines += event.duration * int(event.extra.get("engines", 0))
            cut = event.extra.get("cut")
            if cut is not None and event.extra.get("engines"):
                division.cut_seconds += event.duration
                division.log_cut += event.duration * math.log(max(1.0, float(cut)))

    def _share(self, kind: str) -> Share:
        if kind not in self.shares:
            self.shares[kind] = Share()
        return self.shares[kind]


def _kind(attempt: Attempt) -> str:
    return kind_of_engine(attempt.pool, attempt.for_long)
