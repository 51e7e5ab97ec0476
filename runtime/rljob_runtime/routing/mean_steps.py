"""The mean decode step of an engine between two of its reports of progress.

A running request gets a token in each step. So the time between two reports, divided by the tokens that a
request got, is the time of a step; and what the engine prefilled meanwhile, divided by the same, is what was
prefilled beside it. An engine tells of a prefill when the request has its first token: where one is under way
with a report, its time and its tokens would count in different steps, so that another report is waited for
or nothing is concluded.

A prefill that is longer than from one report to the next tells most of what a token of it takes. There all
others stand still, so that it does not matter how many come and end around it: one request that is there
before and after counts the steps. An engine that had nothing to do begins with what it is given: the time of
that stands for a report, unless something has ended before the next. Pure.
"""

from collections.abc import Mapping
from statistics import median
from typing import NamedTuple

_SAME, _LONG_SAME = 0.5, 0.75
"""Part of the requests that two reports have in common: with less the steps between them were of many sizes;
and part of those of a report that must be there still, for a later report than the next one to be waited
for."""
_PATIENCE = 30
"""Reports of an engine, in a row, that do not count because it may be prefilling something just then, and
goes on with others. If all are like that, as where requests wait in an engine whose cache is full, they count
from then on."""
_STRADDLES = 0.1
"""Part of the requests that begin between two reports which may have been prefilled in part before the first,
at most."""


class MeanStep(NamedTuple):
    """A step as it was on average."""

    seconds: float
    running: int
    kv_tokens: float
    """In the cache."""
    prefilled: float
    """Tokens prefilled beside it."""


class MeanSteps:
    """Of all engines, by their numbers."""

    def __init__(self) -> None:
        self._since: dict[int, _Report] = {}
        """The report of each engine since which a step is measured."""

    def began(self, engine: int, prefilled: int, now: float) -> None:
        """An engine that has nothing to do, and has prefilled so much in all, is given something."""
        self._since[engine] = _Report(now, {}, prefilled, idle=True)

    def ended(self, engine: int) -> None:
        """A request has ended on an engine, or left it."""
        since = self._since.get(engine)
        if since is not None and since.idle and since.newest is None:
            # For how long it has run is not known.
            self.paused(engine)

    def report(
        self, engine: int, tokens: Mapping[str, int], kv_tokens: float, prefilled: int, now: float
    ) -> MeanStep | None:
        """An engine's running requests have generated so many tokens there, by request id, and `kv_tokens`
        are in its cache; `prefilled`: what it has prefilled in all, of requests that have generated a token.
        Returns the mean step since an earlier report; None where that is not known."""
        report, since = _Report(now, dict(tokens), prefilled), self._since.get(engine)
        if since is None:
            self._since[engine] = report._replace(begins=True)
            return None
        if since.idle and since.newest is None:
            since = since._replace(tokens=dict.fromkeys(tokens, 0))
        if stands := since.stands(report):
            since = since._replace(stood=True)
        steps, unclean = since.steps(report), since.unclean + (not stands)
        if steps == 0:
            # A step, or what is prefilled before it, takes longer than from one report to the next. At first
            # it may be what a weight update made stale that is computed, of which nothing tells the tokens.
            self._since[engine] = report._replace(begins=True) if since.begins else since.waited(report)
            return None
        if steps is not None and unclean <= _PATIENCE and since.waits(report):
            self._since[engine] = since.waited(report)._replace(unclean=unclean)
            return None
        clean = steps is None or (report.all_begun and not since.straddled(report))
        self._since[engine] = report._replace(unclean=0 if clean else unclean)
        if steps is None or steps < 0 or now <= since.at or not (clean or unclean > _PATIENCE):
            return None
        if since.untold(report):
            return None
        return MeanStep(
            (now - since.at) / steps,
            since.running(report, steps),
            kv_tokens,
            max(0, prefilled - since.prefilled) / steps,
        )

    def paused(self, engine: int) -> None:
        """An engine stands still, or is gone: the time until its next report tells nothing."""
        self._since.pop(engine, None)


class _Report(NamedTuple):
    """What an engine said."""

    at: float
    tokens: dict[str, int]
    """Of each request."""
    prefilled: int
    begins: bool = False
    """Whether no token is known to have been generated since the engine began, or went on."""
    idle: bool = False
    """Whether it had nothing to do until then: all that is prefilled is prefilled later."""
    unclean: int = 0
    """Reports in a row, up to now, with which something may have been prefilled."""
    stood: bool = False
    """Whether the engine stood still from one report to the next since."""
    newest: Mapping[str, int] | None = None
    """Tokens as told by the report that came last, where it was not this one."""

    @property
    def all_begun(self) -> bool:
        """Whether all requests have tokens; else some may be prefilled at this moment."""
        return 0 not in self.tokens.values()

    def steps(self, after: "_Report") -> float | None:
        """Tokens that a request got until that report; None where most have come or gone meanwhile."""
        gains = [count - self.tokens[key] for key, count in after.tokens.items() if key in self.tokens]
        if not gains:
            return None
        # Of those that begin together some may begin some steps later than the first.
        steps = max(gains) if self.idle else median(gains)
        known = self.stood or len(gains) >= _SAME * max(len(after.tokens), len(self.tokens))
        return steps if known else None

    def running(self, after: "_Report", steps: float) -> int:
        """Requests of a step until that report, on average."""
        if not self.stood:
            return (len(after.tokens) + len(self.tokens)) // 2
        gained = sum(count - self.tokens.get(key, 0) for key, count in after.tokens.items())
        ended = len(self.tokens.keys() - after.tokens.keys())
        return max(1, round(gained / steps + ended / 2))

    def stands(self, after: "_Report") -> bool:
        """Whether nothing was generated between the report that came last and that one."""
        newest = self.tokens if self.newest is None else self.newest
        return all(count == newest.get(key, 0) for key, count in after.tokens.items())

    def waited(self, after: "_Report") -> "_Report":
        """The same when that report is not the last one of what is measured."""
        return self._replace(newest=after.tokens)

    def waits(self, after: "_Report") -> bool:
        """Whether to wait for a report after that one, with which something may be prefilled: enough of the
        requests will be there still."""
        same = len(after.tokens.keys() & self.tokens.keys())
        return not after.all_begun and same >= _LONG_SAME * len(self.tokens)

    def untold(self, after: "_Report") -> bool:
        """Whether much of the time until that report may have been a prefill of which nothing was told."""
        begun = any(self.tokens.get(key, 0) == 0 for key in after.tokens)
        return (self.idle or self.stood) and begun and after.prefilled <= self.prefilled

    def straddled(self, after: "_Report") -> bool:
        """Whether, of those that have their first tokens then, too many were there already with this one."""
        if self.idle:
            return False
        begun = [key for key, count in after.tokens.items() if count > 0 and self.tokens.get(key, 0) == 0]
        return sum(key in self.tokens for key in begun) > _STRADDLES * len(begun)
