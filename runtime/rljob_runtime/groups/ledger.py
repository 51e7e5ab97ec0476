"""Which prompts of the job's sequence are done: the state that makes a restart exact.

Guarantees: a uid is recorded once (a second time is an error); `remaining` yields every uid below `total`
that is neither done nor excluded, once, in ascending order; size grows with the groups in flight, not with
the length of the job.
"""

from collections.abc import Collection, Iterable, Iterator

import msgspec


class Ledger(msgspec.Struct):
    """All uids below `watermark`, and those in `ahead`, are trained."""

    watermark: int = 0
    ahead: set[int] = msgspec.field(default_factory=set)

    def __contains__(self, uid: int) -> bool:
        return uid < self.watermark or uid in self.ahead

    def __len__(self) -> int:
        return self.watermark + len(self.ahead)

    @property
    def end(self) -> int:
        """Every uid from here on is not trained."""
        return max(self.ahead, default=self.watermark - 1) + 1

    def record(self, uids: Iterable[int]) -> None:
        """The groups of these uids were trained. Raises `ValueError` where one was trained before."""
        for uid in uids:
            if uid in self:
                raise ValueError(f"group {uid} was trained before")
            self.ahead.add(uid)
        # Trained without a gap from 0 on, these need no entry of their own.
        while self.watermark in self.ahead:
            self.ahead.remove(self.watermark)
            self.watermark += 1

    def remaining(self, total: int, excluded: Collection[int] = ()) -> Iterator[int]:
        """What is still to be dispatched, oldest first; `excluded` are waiting in the queue. Groups may be
        recorded while this is read."""
        return (uid for uid in range(self.watermark, total) if uid not in self and uid not in excluded)

    def copy(self) -> "Ledger":
        """An independent copy."""
        return Ledger(self.watermark, set(self.ahead))
