"""Numbers for the workers that record events, so that no two write to one file. They are not the ranks of the
trainer, which are numbered among themselves. Pure."""

from dataclasses import dataclass, field


@dataclass
class EventRanks:
    """Gives each worker of a job a rank of its own, the same for as long as the driver runs: workers come and
    go, and one that comes back goes on with its file. 0 is the driver's."""

    _ranks: dict[str, int] = field(default_factory=lambda: {"driver": 0})

    def of(self, worker: str) -> int:
        """The rank of a worker, by name."""
        return self._ranks.setdefault(worker, len(self._ranks))
