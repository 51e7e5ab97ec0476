"""Which engine has fallen silent: it has requests, generates nothing for too long, and others have gone on.

Guarantees: an engine that generated any token meanwhile is not called silent, however slow it is; the time in
which it got no requests or had none (a weight update, a start, a drain, an idle engine) does not count, and
does not begin its time anew either, so that an engine that is paused again and again is found all the same;
where no engine generates nobody is called silent, for then it is not one engine that is at fault
(`driver.stall` is for that). Pure: the time is passed in.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class EngineLook:
    """What is seen of an engine now."""

    number: int
    """Which engine it is; never given again."""
    works: bool
    """Whether it gets requests, and some are submitted to it."""
    tokens: int
    """How many tokens it is known to have generated, by its answers and its reports of progress."""


@dataclass(frozen=True)
class SilentEngine:
    """An engine to be started again."""

    number: int
    seconds: float
    """How long it has had requests without generating a token."""


@dataclass
class _Seen:
    """What is remembered of an engine."""

    tokens: int
    moved_in: int
    """The look in which a token was seen last, or in which it was seen first."""
    works: bool
    """Whether it did when it was looked at last."""
    asked: int | None = None
    """How many tokens it said to have generated when it was asked, since `moved_in`."""
    quiet: float = 0.0
    """Seconds of work since `moved_in`."""


class EngineSilence:
    """Compares what it is shown in one look after the other."""

    def __init__(self, seconds: float, every: float) -> None:
        """An engine may work for `seconds` without a token; it is looked at about `every` so many."""
        self._seconds = seconds
        # A driver that stood still for longer has not heard the engines either.
        self._longest = 2 * every
        self._seen: dict[int, _Seen] = {}
        self._looked_at: float | None = None
        self._look = 0
        """How many looks there were."""
        self._moved_in = 0
        """The newest look but the last one in which an engine was seen to have generated."""
        self._moved_last = False
        """Whether one was in the last look."""

    def to_ask(self, engines: Sequence[EngineLook]) -> list[int]:
        """The engines that are to be asked how many tokens they have generated: nothing else tells of any
        since the last look."""
        return [each.number for each in engines if each.works and self._unmoved(each)]

    def silent(
        self, engines: Sequence[EngineLook], asked: Mapping[int, int], now: float
    ) -> list[SilentEngine]:
        """The engines that are silent now. `engines`: all that are there; `asked`: what those said that were
        asked, and answered; `now`: in seconds of any clock that does not go back."""
        elapsed = 0.0 if self._looked_at is None else min(now - self._looked_at, self._longest)
        self._looked_at = now
        if self._moved_last:
            self._moved_in = self._look
        self._look += 1
        self._moved_last = False
        self._seen = {each.number: self._updated(each, asked.get(each.number), elapsed) for each in engines}
        found = [SilentEngine(number, seen.quiet) for number, seen in self._seen.items()]
        return [each for each in found if each.seconds >= self._seconds and self._others_went_on(each.number)]

    def stood_still(self, number: int) -> bool:
        """Whether an engine worked from one look to the next at least, and was not seen to generate since."""
        seen = self._seen.get(number)
        return seen is not None and seen.quiet > 0

    def _unmoved(self, engine: EngineLook) -> bool:
        seen = self._seen.get(engine.number)
        return seen is not None and engine.tokens <= seen.tokens

    def _updated(self, engine: EngineLook, asked: int | None, elapsed: float) -> _Seen:
        seen = self._seen.get(engine.number)
        if seen is None:
            return _Seen(engine.tokens, self._look, engine.works)
        more = asked is not None and seen.asked is not None and asked > seen.asked
        if more or not self._unmoved(engine):
            self._moved_last = True
            return _Seen(engine.tokens, self._look, engine.works, asked)
        if engine.works and seen.works:
            seen.quiet += elapsed
        seen.works = engine.works
        if seen.asked is None:
            seen.asked = asked
        return seen

    def _others_went_on(self, number: int) -> bool:
        """Whether another engine generated after this one had, and not only just now: all may have stood
        still together, and this one go on next."""
        seen = self._seen[number]
        return seen.works and self._moved_in > seen.moved_in
