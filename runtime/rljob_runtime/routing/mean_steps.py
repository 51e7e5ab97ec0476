"""The mean decode step of an engine between two of its reports of progress.

A running request gets a token in each step. So the time between two reports, divided by the tokens that a
request got, is the time of a step; and what the engine prefilled meanwhile, divided by the same, is what was
prefilled beside it. An engine tells of a prefill when the request has its first token: where one is under way
with a report, its time and its tokens would count in different steps, so that another report is waited for
or nothing is concluded. Pure.
"""

from collections.abc import Mapping
from statistics import median
from typing import NamedTuple

_SAME, _LONG_SAME = 0.5, 0.75
"""Part of the requests that two reports have in common: with less the steps between them were of many sizes;
and up to where a later report than the next one is waited for."""
_PATIENCE = 30
"""Reports of an engine, in a row, that do not count because it may be prefilling something just then. If all
are like that, as where requests wait in an engine whose cache is full, they count from then on."""
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
        steps, unclean = since.steps(report), since.unclean + 1
        if steps == 0:
            # A step, or what is prefilled before it, takes longer than from one report to the next. At first
            # it may be what a weight update made stale that is computed, of which nothing tells the tokens.
            self._since[engine] = report._replace(begins=True) if since.begins else since
            return None
        if steps is not None and unclean <= _PATIENCE and since.waits(report):
            self._since[engine] = since._replace(unclean=unclean)
            return None
        clean = steps is None or (report.all_begun and not since.straddled(report))
        self._since[engine] = report._replace(unclean=0 if clean else unclean)
        if steps is None or steps < 0 or now <= since.at or not (clean or unclean > _PATIENCE):
            return None
        return MeanStep(
            (now - since.at) / steps,
            (len(report.tokens) + len(since.tokens)) // 2,
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
    unclean: int = 0
    """Reports in a row, up to now, with which something may have been prefilled."""

    @property
    def all_begun(self) -> bool:
        """Whether all requests have tokens; else some may be prefilled at this moment."""
        return 0 not in self.tokens.values()

    def steps(self, after: "_Report") -> float | None:
        """Tokens that a request got until that report; None where most have come or gone meanwhile."""
        gains = [count - self.tokens[key] for key, count in after.tokens.items() if key in self.tokens]
        known = gains and len(gains) >= _SAME * max(len(after.tokens), len(self.tokens))
        return median(gains) if known else None

    def waits(self, after: "_Report") -> bool:
        """Whether to wait for a report after that one, with which something may be prefilled: enough of the
        requests will be there still."""
        same = len(after.tokens.keys() & self.tokens.keys())
        return not after.all_begun and same >= _LONG_SAME * max(len(after.tokens), len(self.tokens))

    def straddled(self, after: "_Report") -> bool:
        """Whether, of those that have their first tokens then, too many were there already with this one."""
        begun = [key for key, count in after.tokens.items() if count > 0 and self.tokens.get(key, 0) == 0]
        return sum(key in self.tokens for key in begun) > _STRADDLES * len(begun)
