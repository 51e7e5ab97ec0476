"""When a replica may take a lease. Pure.

The algorithm is that of Kubernetes' own components: a lease that somebody holds may be taken when the record
has not changed for its whole duration as seen on this replica's own monotonic clock. The times inside the
record are for people: clocks of two machines are never compared.
"""

from dataclasses import dataclass, replace


@dataclass(frozen=True)
class LeaseTiming:
    """In seconds. A holder stops writing `renew_deadline` after it sent the last renewal that was done;
    another may begin `duration` after it saw that renewal. What is between is for late packets."""

    # The times of Kubernetes' own components.
    duration: int = 15
    renew_deadline: float = 10.0
    retry: float = 2.0
    """Between two renewals, and between two attempts to take the lease."""

    def __post_init__(self) -> None:
        if not 0 < self.retry < self.renew_deadline < self.duration:
            raise ValueError(
                f"lease timing: retry {self.retry:g} s, renew deadline {self.renew_deadline:g} s and duration"
                f" {self.duration} s must be above 0 and in this order, each below the next"
            )


@dataclass(frozen=True)
class LeaseRecord:
    """A lease, as the API server has it."""

    version: str
    """resourceVersion."""
    holder: str
    """Empty when it was given back."""
    duration: float
    """Seconds for which the holder keeps it without renewal."""
    renewed: str = ""
    """When the holder says that it renewed; looked at for changes only."""
    transitions: int = 0
    """How often it changed hands."""


@dataclass(frozen=True)
class Sighting:
    """A record and when it was first seen so, on the monotonic clock."""

    record: LeaseRecord
    seen_at: float

    def updated(self, record: LeaseRecord, now: float) -> "Sighting":
        """The record was read again. What others than holders change in the object does not count."""
        same = replace(record, version=self.record.version) == self.record
        return Sighting(record, self.seen_at if same else now)

    def free_at(self, identity: str, ended: str = "") -> float:
        """When `identity` may take the lease, if the record does not change before. `ended`: identity of a
        process that is known to write no more."""
        if self.record.holder in ("", identity, ended):
            return self.seen_at
        return self.seen_at + self.record.duration
