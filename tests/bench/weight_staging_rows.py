"""The figures of `weight_staging`: what its updates took, staged beside loaded in the pause."""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from tests.bench.figures import Figure


@dataclass
class Update:
    """Milliseconds of one update."""

    prepare: float
    """While it generates."""
    pause: float
    load: float
    resume: float
    gap: float
    """From the pause until every request in flight has on average one more token."""
    pace: float
    """Tokens a second in `prepare`, over those before it; not a number where nothing is prepared."""

    made: float
    """Tokens in the pause, by the steps that were under way."""

    @property
    def stall(self) -> float:
        return self.pause + self.load + self.resume

    @property
    def still(self) -> float:
        """From when nothing runs any more."""
        return self.load + self.resume


def report(
    where: str, found: Mapping[bool, Sequence[Update]], distance: Mapping[bool, float], lost: int
) -> list[Figure]:
    def row(name: str, part: str, unit: str = "ms", goal: str | None = None) -> Figure:
        values = {
            kind: float(np.nanmedian([getattr(one, part) for one in updates]))
            for kind, updates in found.items()
        }
        return Figure(f"{where}: {name}: median", values[True], unit, values.get(False), goal)

    longest = max(one.stall for one in found[True])
    return [
        row("stall", "stall", goal="at most 30 ms"),
        Figure(f"{where}: stall: longest", longest, "ms"),
        row("given meanwhile by the steps under way", "made", "tokens"),
        row("of it after the step under way has ended (load and resume)", "still"),
        row("pause", "pause"),
        row("load", "load"),
        row("resume", "resume"),
        row("gap until a token per request", "gap"),
        Figure(
            f"{where}: arriving while it generates: median",
            statistics.median(one.prepare for one in found[True]),
            "ms",
        ),
        Figure(
            f"{where}: pace of generation meanwhile: median",
            float(np.nanmedian([one.pace for one in found[True]])),
            "share",
        ),
        Figure(
            f"{where}: mean difference of log-probabilities after updates",
            distance[True],
            "nats",
            distance.get(False),
        ),
        Figure(f"{where}: responses lost", lost, "responses", goal="0"),
    ]
