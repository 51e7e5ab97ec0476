"""How long responses took, by how long they became.

Pure. Guarantees: memory does not grow with the number of responses: points are thinned evenly, by a number
that is the same in each run, and the line through all of them is made from sums.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from rljob_runtime.trace.analyse.requests import Request

POINTS = 800
"""Points that are kept at most, and half of them at least."""


@dataclass
class LengthDuration:
    """Lengths and durations of all responses."""

    points: list[tuple[int, float]] = field(default_factory=list)
    """(tokens, seconds) of one response in `every`."""
    every: int = 1
    count: int = 0
    _x: float = 0.0
    _y: float = 0.0
    _xx: float = 0.0
    _xy: float = 0.0
    _yy: float = 0.0

    def add(self, requests: Sequence[Request]) -> None:
        """Take responses."""
        for request in requests:
            x, y = float(request.length), request.seconds
            if self.count % self.every == 0:
                self.points.append((request.length, y))
                if len(self.points) > POINTS:
                    self.points = self.points[::2]
                    self.every *= 2
            self.count += 1
            self._x += x
            self._y += y
            self._xx += x * x
            self._xy += x * y
            self._yy += y * y

    def line(self) -> tuple[float, float, float] | None:
        """The line through all responses by least squares: seconds of a response without tokens, seconds for
        each token, and R², the part of the durations' variance that lengths explain. None where lengths or
        durations do not differ."""
        if self.count < 3:
            return None
        n = self.count
        spread_x, spread_y = self._xx - self._x**2 / n, self._yy - self._y**2 / n
        # Differences of large sums: what is left of equal values is rounding.
        if spread_x <= 1e-9 * self._xx or spread_y <= 1e-9 * self._yy:
            return None
        both = self._xy - self._x * self._y / n
        slope = both / spread_x
        return (self._y - slope * self._x) / n, slope, both**2 / (spread_x * spread_y)
