"""Time of attention over many steps, in closed form. Pure."""

import numpy as np
from numpy.typing import NDArray


def envelope_sum(kv: NDArray[np.int64], growth: NDArray[np.int64], steps: int) -> float:
    """Sum, over `steps` steps, of the most KV tokens that any engine has: kv + step * growth, step from 0.
    `kv`, `growth`: of each engine, [engines].

    The maximum of lines is convex: where one line is the largest at both ends it is so between them. Between
    ends with different lines the range is cut where these two cross."""
    if len(kv) == 1:
        return float(kv[0]) * steps + float(growth[0]) * (steps * (steps - 1) / 2)
    total, ranges = 0.0, [(0, steps)]
    while ranges:
        begin, end = ranges.pop()
        count = end - begin
        first, last = _largest(kv, growth, begin), _largest(kv, growth, end - 1)
        rise = int(growth[last] - growth[first])
        # Of two lines that are level with each other at one end either may be named there.
        same = kv[first] + begin * growth[first] == kv[last] + begin * growth[last]
        if first == last or same or rise <= 0:
            start, slope = float(kv[last] + begin * growth[last]), float(growth[last])
            total += start * count + slope * (count * (count - 1) / 2)
            continue
        cross = -(-int(kv[first] - kv[last]) // rise)
        cut = min(max(cross, begin + 1), end - 1)
        ranges += [(begin, cut), (cut, end)]
    return total


def _largest(kv: NDArray[np.int64], growth: NDArray[np.int64], step: int) -> int:
    return int(np.argmax(kv + step * growth))
