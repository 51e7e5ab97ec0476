"""Which requests an engine does nothing for, although it goes on with others: it has dropped them, their
answer is lost, or the one of its engines hangs that has them.

The rule. Engines take what waits in the order in which it came, and put what they drop for want of KV memory
in front of all that has not begun. So a request may stand still for as long as those that were on the engine
when it stopped hold the memory. Once each of these has ended, or stands still as it does, nothing keeps it
from going on but a fault. That holds for several engines that are one (`engines.joint`) too: those that could
be beside it are among those.

Guarantees: a request is not called stuck because
- its engine is paused, loads, drains, or stands still as a whole (`driver.engine_silence` is for that);
- the engine tells of no progress at all, or the driver itself stood still;
- others that were there before it stopped still generate;
- it takes long to begin (a prompt, which nothing tells of): each may stand still for twice as long as any
  that then went on (and did so lately: that is remembered for ten times as long as it had lasted), and for
  twice as long each time that it is taken out.
The engine is at fault where it does not let go of one in time that was told to leave, for that needs no
memory and no token; and where what it got after such requests had left stood still again, and again.
Pure: the time is passed in.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from rljob_runtime.groups.responses import response_of

_FREE_LOOKS = 3
"""For how many looks a request has to stand still once nothing keeps it from going on: that it went on is not
known at once. And how many it has at least to leave, once it was told to."""
_LEAVE_SECONDS = 60.0
"""And how long."""
_REMEMBERED = 10
"""For how many times as long as a request stood still it is remembered that it then went on. An engine that
compiles, or a prompt that is longer than all others, says little of what comes much later."""
_MOST_TIMES = 2
"""How often requests may have to leave an engine: each time others that it got after the time before."""

Verdict: TypeAlias = Literal["leaves", "kept", "again"]
"""What is to be done for a request that is stuck. It leaves its engine; or the engine is to be started again,
for it was told to let go of it and does not, or such requests left it too often."""


@dataclass(frozen=True)
class RequestsLook:
    """What is seen of an engine's requests now."""

    number: int
    """Which engine it is; never given again."""
    works: bool
    """Whether it gets requests, and some are submitted to it."""
    tokens: int
    """How many tokens it is known to have generated, by its answers and its reports of progress."""
    reports: int
    """How many reports of progress have come from it."""
    asked: int | None
    """How many tokens it says to have generated, where it was asked now and has answered."""
    requests: Collection[str]
    """What is submitted to it."""
    told: Mapping[str, int]
    """How many tokens of each it has told of; it may be missing where these are none."""


@dataclass(frozen=True)
class StuckRequest:
    """A request for which its engine does nothing."""

    engine: int
    request: str
    seconds: float
    """For how long, while the engine went on with others."""
    verdict: Verdict


@dataclass
class _Still:
    """A request that was not seen to get a token from one look to the next at least."""

    beside: frozenset[str]
    """All that was on its engine when that was seen first."""
    tokens: int
    """How many tokens the engine had generated then."""
    seconds: float = 0.0
    """How long it has stood still, as far as that counts."""
    free: float | None = None
    """The part of it until nothing of what was beside it went on any more."""
    leaving: float | None = None
    """The part of it until it was seen to have been told to leave."""


@dataclass
class _Seen:
    """What is remembered of an engine at which it was looked while it worked."""

    tokens: int
    reports: int
    asked: int | None
    """What it said, where it was asked."""
    told: dict[str, int]
    """Of each request that was there."""
    works: bool = True
    """Whether it did when it was looked at last."""
    still: dict[str, _Still] = field(default_factory=dict)
    times: int = 0
    """How often requests had to leave it."""
    there: frozenset[str] = frozenset()
    """What was on it the last time."""


@dataclass
class _WentOn:
    """How long requests stood still that then went on, as far as that is remembered."""

    time: float = 0.0
    """Seconds in which engines that worked were looked at."""
    stood: list[tuple[float, float]] = field(default_factory=list)
    """Until when it is remembered, and for how long one stood still: the longest first, each of the others
    remembered for longer than those before it."""

    @property
    def longest(self) -> float:
        """The longest of these times; 0 where there are none."""
        return self.stood[0][1] if self.stood else 0.0

    def add(self, seconds: float) -> None:
        """One that stood still for so long went on."""
        until = self.time + _REMEMBERED * seconds
        longer = [each for each in self.stood if each[1] > seconds]
        if not longer or longer[-1][0] < until:
            self.stood = [*longer, (until, seconds)]

    def wait(self, seconds: float) -> None:
        """So much time has gone by."""
        self.time += seconds
        self.stood = [each for each in self.stood if each[0] > self.time]


class RequestSilence:
    """Compares what it is shown in one look after the other."""

    def __init__(self, seconds: float, every: float) -> None:
        """A request may stand still for `seconds` while its engine goes on; it is looked about every `every`
        so many."""
        self._seconds = seconds
        self._free_seconds = _FREE_LOOKS * every
        self._leave_seconds = max(_LEAVE_SECONDS, self._free_seconds)
        # A driver that stood still for longer has not heard the engines either.
        self._longest = 2 * every
        self._seen: dict[int, _Seen] = {}
        self._looked_at: float | None = None
        self._went_on = _WentOn()
        self._taken_out: dict[str, int] = {}
        """How often each response was told to leave for this; few ever are."""

    def stuck(
        self, engines: Sequence[RequestsLook], leaving: Callable[[int, str], bool], now: float
    ) -> list[StuckRequest]:
        """The requests that are stuck now. `engines`: all that are there; `leaving`: whether an engine was
        told to let go of a request, which is asked of few; `now`: in seconds of any clock that does not go
        back. Whoever is given one that `leaves` tells it so."""
        elapsed = 0.0 if self._looked_at is None else min(now - self._looked_at, self._longest)
        self._looked_at = now
        if any(each.works for each in engines):
            self._went_on.wait(elapsed)
        seen, found = {}, []
        for each in engines:
            before = self._seen.get(each.number)
            if not each.works and before is not None:
                before.works = False
                seen[each.number] = before
            elif each.works:
                after = seen[each.number] = _looked(each, before, elapsed)
                if before is not None:
                    self._learn(before, after)
                found += self._stuck_on(each.number, after, leaving)
        self._seen = seen
        return found

    def _learn(self, before: _Seen, after: _Seen) -> None:
        for name, still in before.still.items():
            if after.told.get(name, 0) > before.told[name]:
                self._went_on.add(still.seconds)

    def _stuck_on(self, number: int, seen: _Seen, leaving: Callable[[int, str], bool]) -> list[StuckRequest]:
        """Those of one engine."""
        seconds = max(self._seconds, 2 * self._went_on.longest)
        doubtful = {
            name for name, still in seen.still.items() if still.seconds >= seconds - self._free_seconds
        }
        if not doubtful:
            return []
        moving = seen.told.keys() - doubtful
        found: list[StuckRequest] = []
        for name, still in seen.still.items():
            # Or it stood still as a whole since then.
            if name not in doubtful or seen.tokens <= still.tokens:
                continue
            if not still.beside.isdisjoint(moving):
                still.free = None
            elif still.free is None:
                still.free = still.seconds
            if still.seconds >= seconds and (verdict := self._verdict(seen, name, leaving(number, name))):
                found.append(StuckRequest(number, name, still.seconds, verdict))
        return found

    def _verdict(self, seen: _Seen, name: str, leaving: bool) -> Verdict | None:
        """What becomes of a request that has stood still for so long; None: nothing yet."""
        still, response = seen.still[name], response_of(name)
        if leaving:
            if still.leaving is None:
                still.leaving = still.seconds
            return "kept" if still.seconds - still.leaving >= self._leave_seconds else None
        times = self._taken_out.get(response, 0)
        limit = 2**times * max(self._seconds, 2 * self._went_on.longest)
        if still.seconds < limit or still.free is None or still.seconds - still.free < self._free_seconds:
            return None
        self._taken_out[response] = times + 1
        still.leaving = still.seconds
        if name not in seen.there:
            seen.times, seen.there = seen.times + 1, frozenset(seen.told)
        return "leaves" if seen.times <= _MOST_TIMES else "again"


def _looked(each: RequestsLook, before: _Seen | None, elapsed: float) -> _Seen:
    """What is remembered of an engine that works, after another look."""
    told = {name: each.told.get(name, 0) for name in each.requests}
    seen = _Seen(each.tokens, each.reports, each.asked, told)
    if before is None:
        return seen
    seen.times, seen.there = before.times, before.there
    if each.tokens == before.tokens:
        # It lives and has nothing else to do: else it does not say, or says that it generated for some that
        # it has not told of yet.
        alive = each.asked is not None and each.asked == before.asked
    else:
        # Where it tells of what it generates only when that is complete, nothing is known of the others.
        alive = each.reports > before.reports
    counts = elapsed if before.works and alive else 0.0
    beside: frozenset[str] | None = None
    for name, count in told.items():
        if before.told.get(name) != count:
            continue
        still = before.still.get(name)
        if still is None:
            beside = beside or frozenset(told)
            still = _Still(beside, each.tokens)
        still.seconds += counts
        seen.still[name] = still
    return seen
