"""Which versions of the weights the engines hold that may generate for training: the oldest is known at once,
however many engines there are, for they hold few different ones."""

from collections import Counter


class VersionsHeld:
    """Counts engines by version. One that loads another version is removed and added again."""

    def __init__(self) -> None:
        self._engines: Counter[int] = Counter()

    def add(self, version: int) -> None:
        """An engine that holds this version may generate for training from now on."""
        self._engines[version] += 1

    def remove(self, version: int) -> None:
        """An engine that holds this version may not any more, or is gone."""
        self._engines[version] -= 1
        if self._engines[version] == 0:
            del self._engines[version]

    def oldest(self) -> int | None:
        """The oldest version that any of them holds; None where there is none of them."""
        return min(self._engines, default=None)
