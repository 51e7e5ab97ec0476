"""How much the engines of a pool have done. Pure."""

from dataclasses import dataclass


@dataclass(frozen=True)
class PoolUse:
    """What engines have done since the job began."""

    seconds: float = 0.0
    """Time from when each of them joined until it was gone, summed over all that there ever were."""
    idle: float = 0.0
    """The part of it in which they had nothing to do."""
    running: int = 0
    """Requests placed on those that are there now."""

    def __add__(self, other: "PoolUse") -> "PoolUse":
        return PoolUse(self.seconds + other.seconds, self.idle + other.idle, self.running + other.running)
