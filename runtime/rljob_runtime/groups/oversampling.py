"""Over-sampling: more groups are begun than steps train, and the slowest are aborted as whole groups
(`rollout.overSampling`).

Guarantees (docs/algorithms.md has the proof):
- a group is aborted only once the steps that could train it in time have enough others, and never when its
  responses are complete;
- no more groups are aborted at a time than were begun beyond what the bound admits;
- a prompt that was aborted goes before all others again within two weight versions, and is not aborted again.

Why it is held for that long: were it begun at once, each step would wait for the long responses of the steps
before it. So they come together, every third version, which begins no surplus.

Pure: no clock, no I/O.
"""

import math
from collections import Counter
from collections.abc import Callable
from fractions import Fraction

CYCLE = 3
"""Aborted prompts are begun again in every third version: the last of a cycle."""


def surplus_groups(rate: float, groups: int) -> int:
    """Groups that are begun in a version beyond what the bound admits, where it trains so many `groups`."""
    # By way of its text, as in `Bound`; one at least, which a rule of the RLJob demands up to rounding.
    return max(1, math.floor(Fraction(str(rate)) * groups))


class OverSampling:
    """Which groups may be aborted, and which prompts were. A group is *claimed* once it takes a slot of a
    step, unless it is refused: when its responses are complete, and from its dispatch where its prompt was
    aborted before."""

    def __init__(self, surplus: int) -> None:
        """`surplus`: groups that are begun in each version beyond what the bound admits."""
        self.surplus = surplus
        self.claimed: Counter[int] = Counter()
        """How many claimed groups that no step has taken have each deadline."""
        self._open: dict[int, set[int]] = {}
        """The groups that may be aborted, by deadline."""
        self._held: dict[int, int] = {}
        """Aborted prompts that wait, in the order in which they were aborted, and the version from which on
        they go before all others."""
        self._ending: set[int] = set()
        """Those of them whose requests may still run."""
        self._again: set[int] = set()
        """Outstanding groups whose prompts were aborted before."""

    @property
    def held(self) -> int:
        """Aborted prompts that wait."""
        return len(self._held)

    def surplus_at(self, version: int) -> int:
        """Groups beyond what the bound admits that may be outstanding in this version."""
        return 0 if version % CYCLE == CYCLE - 1 else self.surplus

    def next_held(self, version: int, any_time: bool) -> int | None:
        """The aborted prompt that goes before all others in this version; with `any_time` also one whose time
        has not come."""
        return next(
            (
                uid
                for uid, due in self._held.items()
                if uid not in self._ending and (any_time or due <= version)
            ),
            None,
        )

    def dispatched(self, uid: int, deadline: int) -> None:
        """A group was begun."""
        if self._held.pop(uid, None) is None:
            self._open.setdefault(deadline, set()).add(uid)
        else:
            self._again.add(uid)
            self.claimed[deadline] += 1

    def again(self, uid: int) -> bool:
        """Whether the prompt of this outstanding group was aborted before."""
        return uid in self._again

    def claim(self, uid: int, deadline: int) -> None:
        """The responses of a group are complete. A second time nothing happens."""
        if self._close(uid, deadline):
            self.claimed[deadline] += 1

    def refused(self, uid: int, deadline: int) -> None:
        """A group takes no slot."""
        if not self._close(uid, deadline):
            self._again.discard(uid)
            self._unclaim(deadline)

    def taken(self, uid: int, deadline: int) -> None:
        """A step takes this group."""
        self._again.discard(uid)
        self._unclaim(deadline)

    def full(self, deadline: int, slots: int) -> bool:
        """Whether all `slots` of the steps up to this deadline have their groups."""
        return sum(count for each, count in self.claimed.items() if each <= deadline) >= slots

    def abort(self, slots: Callable[[int], int], version: int) -> list[int]:
        """The groups to abort: those that no step can train in time. They are held now. `slots` of the steps
        from the next one on up to a deadline; `version` of the next step."""
        claimed, waiting, found = 0, [], []
        for deadline in sorted({*self._open, *self.claimed}):
            claimed += self.claimed[deadline]
            waiting.append(deadline)
            if claimed >= slots(deadline):
                for each in waiting:
                    found += sorted(self._open.pop(each, ()))
                waiting = []
        # The last version of the cycle that the next step's version is in.
        due = version - version % CYCLE + CYCLE - 1
        for uid in found:
            self._held[uid] = due
            self._ending.add(uid)
        return found

    def ended(self, uid: int) -> None:
        """The requests of a group that was aborted have ended: its prompt may be begun again."""
        self._ending.discard(uid)

    def _close(self, uid: int, deadline: int) -> bool:
        """This group cannot be aborted any more; whether it could be until now."""
        among = self._open.get(deadline, set())
        if uid not in among:
            return False
        among.remove(uid)
        if not among:
            del self._open[deadline]
        return True

    def _unclaim(self, deadline: int) -> None:
        self.claimed[deadline] -= 1
        if not self.claimed[deadline]:
            del self.claimed[deadline]
