"""The order of the data: seeded, and the same on every machine and with every library version, so that a
resumed job goes on in the order it began with.

The generator is SplitMix64 (Steele, Lea, Flood, "Fast splittable pseudorandom number generators", 2014).
"""

import numpy as np
from numpy.typing import NDArray

# Integers of Python have no width: each multiplication is cut to 64 bits. numpy's wrap around by themselves.
_MASK = (1 << 64) - 1
# 2^64 divided by the golden ratio, rounded to an odd number; the other two are the paper's `mix64variant13`.
_GOLDEN = 0x9E3779B97F4A7C15
_FIRST = 0xBF58476D1CE4E5B9
_SECOND = 0x94D049BB133111EB


def mix(key: int, index: int) -> int:
    """Number `index` of the random stream `key`: 64 bits, uniform."""
    value = (key + (index + 1) * _GOLDEN) & _MASK
    value = ((value ^ (value >> 30)) * _FIRST) & _MASK
    value = ((value ^ (value >> 27)) * _SECOND) & _MASK
    return value ^ (value >> 31)


def mix_many(key: int, count: int) -> NDArray[np.uint64]:
    """`mix(key, 0)` to `mix(key, count - 1)`."""
    value = np.arange(1, count + 1, dtype=np.uint64) * np.uint64(_GOLDEN) + np.uint64(key & _MASK)
    value = (value ^ (value >> np.uint64(30))) * np.uint64(_FIRST)
    value = (value ^ (value >> np.uint64(27))) * np.uint64(_SECOND)
    return value ^ (value >> np.uint64(31))


def permutation(seed: int, epoch: int, rows: int) -> NDArray[np.int64]:
    """The rows of an epoch in their order: shape (rows,)."""
    # Stable: the other kinds may order equal keys differently in another version of numpy.
    return np.argsort(mix_many(mix(mix(seed, 0), epoch), rows), kind="stable")


class Shuffle:
    """The order of one source's rows, epoch after epoch. Two epochs are kept, because groups of two epochs
    are in flight where one ends."""

    def __init__(self, seed: int, rows: int) -> None:
        self._seed = seed
        self._rows = rows
        self._epochs: dict[int, NDArray[np.int64]] = {}

    def row(self, epoch: int, place: int) -> int:
        """The row at a place of an epoch."""
        order = self._epochs.pop(epoch, None)
        if order is None:
            order = permutation(self._seed, epoch, self._rows)
        # The newest stands last.
        self._epochs[epoch] = order
        if len(self._epochs) > 2:
            del self._epochs[next(iter(self._epochs))]
        return int(order[place])
