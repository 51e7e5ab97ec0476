"""One report of how far requests are, from those of several engines that report by themselves.

Guarantees: what is told is of requests that still run, and newer for each of them than what was told before;
a report waits for those of the other engines that run something, and no longer than until its own engine
reports again.
"""

from collections.abc import Mapping

from rljob_runtime.engines.protocol import ProgressListener


class JointProgress:
    """See the module's guarantees."""

    def __init__(self, running: Mapping[str, int], listener: ProgressListener) -> None:
        """`running`: which engine runs each request, as it is at any time."""
        self._running = running
        self._listener = listener
        self._reports: dict[int, Mapping[str, int]] = {}
        """By engine, since the last time that something was told."""
        self._prefilled: dict[int, int] = {}
        """What each has prefilled, as it told last."""

    def reported(self, engine: int, tokens: Mapping[str, int], prefilled: int) -> None:
        """What engine number `engine` says of its requests, and of what it has prefilled."""
        if engine in self._reports:
            self._tell()
        self._reports[engine], self._prefilled[engine] = tokens, prefilled
        if self._reports.keys() >= set(self._running.values()):
            self._tell()

    def _tell(self) -> None:
        whole = {
            name: count
            for tokens in self._reports.values()
            for name, count in tokens.items()
            if name in self._running
        }
        self._reports.clear()
        if whole:
            self._listener(whole, sum(self._prefilled.values()))
