"""Which prompts of the job's sequence are done, trained or refused: the state that makes a restart exact.

Guarantees: a uid is recorded once (a second time is an error); `remaining` yields every uid below `total`
that is neither done nor excluded, once, in ascending order; size grows with the groups in flight, not with
the length of the job.
"""

from collections.abc import Collection, Iterable, Iterator
from itertools import count

import msgspec

from rljob_runtime.groups.filter import Reason


class Ledger(msgspec.Struct):
    """All uids below `watermark`, and those in `ahead`, are done."""

    watermark: int = 0
    ahead: set[int] = msgspec.field(default_factory=set)
    refused: int = 0
    """How many of them were refused; the others are trained."""
    refused_pass_rate: int = 0
    """How many of the refused ones were so for their pass rate; the others for equal rewards."""

    def __contains__(self, uid: int) -> bool:
        return uid < self.watermark or uid in self.ahead

    def __len__(self) -> int:
        return self.watermark + len(self.ahead)

    @property
    def trained(self) -> int:
        """How many groups are trained."""
        return len(self) - self.refused

    @property
    def end(self) -> int:
        """Every uid from here on is not done."""
        return max(self.ahead, default=self.watermark - 1) + 1

    def record(self, uids: Iterable[int]) -> None:
        """The groups of these uids were trained. Raises `ValueError` where one was done before."""
        for uid in uids:
            if uid in self:
                raise ValueError(f"group {uid} was done before")
            self.ahead.add(uid)
        # Done without a gap from 0 on, these need no entry of their own.
        while self.watermark in self.ahead:
            self.ahead.remove(self.watermark)
            self.watermark += 1

    def refuse(self, uid: int, reason: Reason) -> None:
        """The group of this uid was refused. Raises `ValueError` where it was done before."""
        self.record([uid])
        self.refused += 1
        self.refused_pass_rate += reason == "pass_rate"

    def remaining(self, total: int | None, excluded: Collection[int] = ()) -> Iterator[int]:
        """What is still to be dispatched, oldest first; without an end where `total` is None. `excluded` are
        waiting in the queue. Groups may be recorded while this is read."""
        uids = count(self.watermark) if total is None else range(self.watermark, total)
        return (uid for uid in uids if uid not in self and uid not in excluded)

    def copy(self) -> "Ledger":
        """An independent copy."""
        return Ledger(self.watermark, set(self.ahead), self.refused, self.refused_pass_rate)
