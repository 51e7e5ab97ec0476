"""Staleness control: which prompts may be dispatched, and which groups are trained next.

Guarantees, for a bound of S weight versions, G groups per step and K steps per version:
- no group is trained more than ceil(S) versions after the version at which it was dispatched (and no token
  of it is older than that), time in the queue included;
- nothing is dropped for its age: admission is held back instead, so that every group can be trained in time;
- a group is trained once; among groups that are ready, the one with the nearest deadline, then the oldest,
  goes first.

Admission is AReaL's capacity formula (arXiv:2505.24298, section 5.1) with trained and outstanding groups
counted together: at version v at most floor((S + v + 1) * K * G) groups have ever been dispatched, without
those that were refused. That bounds the mean age. The hard bound comes from selection: a batch is taken only
if the groups left over can still be trained before their deadlines, which the admission formula makes
possible at any time (docs/algorithms.md holds the proof).

With `Bound.masks` the hard bound is that of each trained token instead (`groups.masking`): a batch is taken
as soon as enough groups are ready, and admission alone holds the producer back. With over-sampling
(`groups.oversampling`) more groups are admitted, and those that could not be trained in time are aborted.

Pure: no clock, no I/O.
"""

import heapq
import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property

from rljob_api.training import Training
from rljob_runtime.groups.oversampling import OverSampling
from rljob_runtime.groups.refill import Refill


@dataclass(frozen=True)
class Bound:
    """The parameters of staleness control."""

    max_staleness: float
    """S in the formulas, in weight versions; may be a fraction."""
    groups_per_step: int
    """G in the formulas: groups that a step trains."""
    steps_per_version: int = 1
    """K in the formulas: steps from one version to the next."""
    masks: bool = False
    """Whether tokens beyond the bound are masked, and no step waits for the groups that have them."""

    @staticmethod
    def of(training: Training) -> "Bound":
        """The bound of a job."""
        ahead = training.async_
        return Bound(
            ahead.max_staleness,
            training.groups_per_step,
            ahead.steps_per_version,
            masks=ahead.stale_tokens == "mask",
        )

    @property
    def versions(self) -> int:
        """The hard bound in whole versions."""
        return math.ceil(self.max_staleness)

    @cached_property
    def _exact_staleness(self) -> tuple[int, int]:
        """S as a fraction in lowest terms, numerator and denominator: 1 and 5 for 0.2. Kept, since admission
        asks for it often."""
        # By way of its text: the float nearest to 0.2 is not 0.2, and rounding down would show the
        # difference.
        return Fraction(str(self.max_staleness)).as_integer_ratio()

    @property
    def most_outstanding(self) -> int:
        """Most groups that are ever dispatched and not trained."""
        return self.admitted_at(0)

    def version_at(self, step: int) -> int:
        """Weight version with which step `step` (from 0) is trained."""
        return step // self.steps_per_version

    def admitted_at(self, version: int) -> int:
        """How many groups may have been dispatched, in all, while engines generate with `version`."""
        # floor((v + 1 + S) * K * G) in whole numbers, with S = share / whole.
        share, whole = self._exact_staleness
        return (share + (version + 1) * whole) * self.steps_per_version * self.groups_per_step // whole

    def slots(self, first_step: int, version: int) -> int:
        """Groups that steps first_step, first_step + 1, ... train up to the last step of `version`."""
        return max(0, (version + 1) * self.steps_per_version - first_step) * self.groups_per_step


def choose_batch(
    bound: Bound,
    step: int,
    ready: Mapping[int, int],
    outstanding: Mapping[int, int],
    size: int,
    surplus: int = 0,
) -> Mapping[int, int] | None:
    """How many ready groups of each deadline step `step` trains, or None to wait.

    A deadline is the last version at which a group may be trained. `outstanding` counts the groups that are
    dispatched and not trained by their deadline; `ready` those of them that wait in the queue; `size` is how
    many groups the step takes, those with the nearest deadlines. Waits while fewer than `size` are ready, or
    while taking the ready ones would leave some other group without a slot before its deadline; the latter
    not where `bound.masks`, since there the deadline holds for tokens, and groups outlive it. Up to each
    deadline so many groups of `surplus` may be left without a slot.

    Groups with one deadline are alike here, and there are few deadlines, whatever the number of groups.
    """
    if sum(ready.values()) < size:
        return None
    batch: dict[int, int] = {}
    wanted = size
    # Nearest deadlines first.
    for deadline in sorted(ready):
        batch[deadline] = min(ready[deadline], wanted)
        wanted -= batch[deadline]
    if bound.masks:
        return batch
    return batch if _fit(bound, step + 1, outstanding, batch, surplus) else None


def _fit(
    bound: Bound, step: int, groups: Mapping[int, int], without: Mapping[int, int], surplus: int
) -> bool:
    """Whether, up to each deadline, `groups` less those of `without` and less `surplus` fit into the steps
    from `step` on (rule 2 of docs/algorithms.md). Both are counts by deadline."""
    left = 0
    for deadline in sorted(groups):
        left += groups[deadline] - without.get(deadline, 0)
        if left > bound.slots(step, deadline) + surplus:
            return False
    return True


class StalenessController:
    """Every outstanding group, from dispatch to training."""

    def __init__(
        self,
        bound: Bound,
        total_groups: int,
        trained: int = 0,
        capacity_groups: int | None = None,
        refill: Refill | None = None,
        over: OverSampling | None = None,
    ) -> None:
        """`total_groups`: how many the whole job trains. `trained`: how many of them are done.
        `capacity_groups`: how many the queue holds; at least `bound.groups_per_step`. `refill`: how
        many groups are refused; None: none. `over`: which groups are aborted; None: none."""
        self.bound = bound
        self.total_groups = total_groups
        self.trained = trained
        self._capacity = capacity_groups
        self._refill = refill
        self._over = over
        self._step = trained // bound.groups_per_step
        """The next step that takes groups."""
        self._deadlines: dict[int, int] = {}
        """The deadline of each outstanding group, by uid."""
        self._outstanding: Counter[int] = Counter()
        """How many outstanding groups have each deadline."""
        self._ready: dict[int, set[int]] = {}
        """The groups that wait to be trained, by deadline."""

    @property
    def outstanding(self) -> int:
        """Groups dispatched and not trained."""
        return len(self._deadlines)

    @property
    def ready(self) -> int:
        """Groups that wait to be trained."""
        return sum(map(len, self._ready.values()))

    def room(self, version: int) -> int:
        """How many groups may be dispatched to engines whose oldest version is `version`.

        Every outstanding group has its place in the queue: were there fewer places, the queue could be full
        of groups that must wait for one that finds no place.
        """
        places = self._places(version)
        if self._over is not None:
            # The places at the job's end are for prompts that were aborted.
            places = min(places, self._undispatched - self._over.held)
        return max(0, places)

    def held_prompt(self, version: int) -> int | None:
        """The uid of a prompt that was aborted and goes now, to engines whose oldest version is `version`,
        before all others; None where there is none, or no room for it."""
        if self._over is None or self._places(version) <= 0:
            return None
        return self._over.next_held(version, any_time=self._undispatched <= self._over.held)

    def _places(self, version: int) -> int:
        admitted = self.bound.admitted_at(version)
        if self._over is not None:
            deadline = version + self.bound.versions
            if self._over.full(deadline, self.bound.slots(self._step, deadline)):
                return 0
            admitted += self._over.surplus_at(version)
        limit = min(self.total_groups, admitted) - self.trained
        if self._capacity is not None:
            limit = min(limit, self._capacity)
        return limit - self.outstanding

    @property
    def _undispatched(self) -> int:
        """Groups that the job has yet to begin, aborted ones among them."""
        return self.total_groups - self.trained - self.outstanding

    def dispatched(self, uid: int, version: int) -> None:
        """A group goes to engines whose oldest version is `version`. Raises `ValueError` where it is
        outstanding."""
        if uid in self._deadlines:
            raise ValueError(f"group {uid} is outstanding already")
        deadline = version + self.bound.versions
        self._deadlines[uid] = deadline
        self._outstanding[deadline] += 1
        if self._over is not None:
            self._over.dispatched(uid, deadline)

    def claim(self, uid: int) -> None:
        """The responses of a dispatched group are complete: it is not aborted any more; `refuse` or `put`
        follows."""
        if self._over is not None:
            self._over.claim(uid, self._deadlines[uid])

    def surplus(self) -> list[int]:
        """The groups to abort now. They are outstanding no more; once their requests have ended, `ended` is
        to be told, and their prompts come again by `held_prompt`."""
        if self._over is None:
            return []
        step = self._step
        uids = self._over.abort(
            lambda deadline: self.bound.slots(step, deadline), self.bound.version_at(step)
        )
        for uid in uids:
            self._forget(uid)
        return uids

    def ended(self, uid: int) -> None:
        """The requests of a group that was to be aborted have ended."""
        if self._over is not None:
            self._over.ended(uid)

    def again(self, uid: int) -> bool:
        """Whether the prompt of this outstanding group was aborted before."""
        return self._over is not None and self._over.again(uid)

    def put(self, uid: int) -> None:
        """A dispatched group is complete and waits in the queue. Raises `ValueError` where it was not
        dispatched."""
        if uid not in self._deadlines:
            raise ValueError(f"group {uid} was not dispatched")
        self.claim(uid)
        self._ready.setdefault(self._deadlines[uid], set()).add(uid)

    def refuse(self, uid: int) -> bool:
        """An outstanding group that was not put is to be refused: whether it is. If so, it is outstanding
        no more, and its place is free for another prompt."""
        if self._refill is None or not self._refill.refuse(self._undispatched):
            return False
        if self._over is not None:
            self._over.refused(uid, self._deadlines[uid])
        self._forget(uid)
        if not self._refill.endless:
            self.total_groups -= 1
        return True

    def batch_size(self) -> int:
        """Groups that the next step trains; 0 when the job is done."""
        return min(self.bound.groups_per_step, self.total_groups - self.trained)

    def awaits_group(self, version: int) -> bool:
        """Whether the next step takes more groups than are outstanding, so that nothing is gained by
        dispatching one more later. Not while engines, whose oldest version is `version`, are to get the one
        that the step begins with: the same group has a later deadline then, and the step has more to choose
        from."""
        return self.batch_size() > self.outstanding and version >= self.bound.version_at(self._step)

    @property
    def done(self) -> bool:
        """Whether all groups of the job are trained."""
        return self.batch_size() == 0

    @property
    def steps_left(self) -> int:
        """Steps that train what is left; fewer where groups of an epoch are refused."""
        # Rounded up: the last step trains what is left.
        return -(-(self.total_groups - self.trained) // self.bound.groups_per_step)

    def select(self, step: int) -> tuple[int, ...] | None:
        """The groups of step `step`, in order of uid, or None to wait; see `choose_batch`. Of the groups with
        one deadline the oldest go."""
        ready = {deadline: len(uids) for deadline, uids in self._ready.items()}
        surplus = 0 if self._over is None else self._over.surplus
        batch = choose_batch(self.bound, step, ready, self._outstanding, self.batch_size(), surplus)
        if batch is None:
            return None
        # What is claimed is not aborted, and must be trained in time.
        if self._over is not None and not _fit(self.bound, step + 1, self._over.claimed, batch, 0):
            return None
        return tuple(
            sorted(
                uid
                for deadline, count in batch.items()
                for uid in heapq.nsmallest(count, self._ready[deadline])
            )
        )

    def taken(self, step: int, uids: Iterable[int]) -> None:
        """Step `step` trains these groups, as they were selected for it."""
        self._step = step + 1
        if self._over is not None:
            for uid in uids:
                self._over.taken(uid, self._deadlines[uid])

    def finished(self, uids: Iterable[int]) -> None:
        """These outstanding groups were trained."""
        for uid in uids:
            deadline = self._deadlines[uid]
            self._ready[deadline].remove(uid)
            if not self._ready[deadline]:
                del self._ready[deadline]
            self._forget(uid)
            self.trained += 1
        if self._refill is not None:
            self._refill.step_trained()

    def dispatch_version(self, uid: int) -> int:
        """Version at which an outstanding group was dispatched."""
        return self._deadlines[uid] - self.bound.versions

    def deadline(self, uid: int) -> int:
        """Last version that may train an outstanding group."""
        return self._deadlines[uid]

    def _forget(self, uid: int) -> None:
        deadline = self._deadlines.pop(uid)
        self._outstanding[deadline] -= 1
        # So that `select` looks at the few deadlines that groups have, and not at all that there ever were.
        if not self._outstanding[deadline]:
            del self._outstanding[deadline]
