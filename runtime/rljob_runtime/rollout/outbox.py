"""Finished groups from the moment they are complete until they are trained.

Guarantees: a group is kept here until it is trained, so that a lost queue host can be filled again, and a
checkpoint has all that waits; putting it again is harmless, for the queue recognises it. That the queue has
another group of its uid, which would be trained in its place, is an error.

So the bytes of a waiting group are in memory twice: here and in the queue's host, which is on the same node;
those of up to a step's groups once more on the trainer's rank 0.
A token of a response takes about 8 bytes in either; tests/bench/step_data.py measures it.
"""

from collections.abc import Callable, Sequence

from rljob_runtime.queue.client import AsyncQueueClient, QueueError
from rljob_runtime.samples import Group, decode_group, encode
from rljob_runtime.trace.record.event_log import EventLog


class StaleGroup(RuntimeError):
    """The queue has another group of the same prompt."""


class Outbox:
    """Implements the rollouter's `GroupSink` and the training loop's `WaitingGroups` on a queue client."""

    def __init__(
        self,
        queue: AsyncQueueClient,
        events: EventLog,
        put_seconds: float,
        on_stored: Callable[[Sequence[int]], None] = lambda uids: None,
    ) -> None:
        """`put_seconds` (spec.training.timeouts.stallSeconds): how long a put may wait, for the queue's host
        above all: there is room for every group that was admitted. `on_stored` is told of groups that the
        queue has, by their uids; of one it may be told again."""
        self._on_stored = on_stored
        self._queue = queue
        self._events = events
        self._put_seconds = put_seconds
        self._kept: dict[int, tuple[int, bytes, float]] = {}
        """By uid the number of samples, the wire form, and when the group was complete, in seconds of the
        events' clock."""

    async def __call__(self, group: Group) -> None:
        """Keep the group and put it into the queue. Raises `StaleGroup`."""
        frame = encode(group)
        # Before it is put: a host that replaces one that is lost during the put is filled from here.
        self._kept[group.uid] = (len(group.samples), frame, self._events.clock())
        (stored,) = await self._put([(group.uid, len(group.samples), frame)])
        if not stored:
            raise StaleGroup(f"group {group.uid}: the queue has another one, or has it as trained")

    @property
    def samples(self) -> int:
        """Number of samples in the groups that wait."""
        return sum(samples for samples, _, _ in self._kept.values())

    async def refill(self) -> int:
        """Put every waiting group again, after the queue lost its memory. Returns how many; one that the
        trainer acknowledged meanwhile stays out, for it is trained."""
        groups = [(uid, samples, frame) for uid, (samples, frame, _) in self._kept.items()]
        if groups:
            await self._put(groups)
        return len(groups)

    async def _put(self, groups: Sequence[tuple[int, int, bytes]]) -> list[bool]:
        try:
            stored = await self._queue.put(groups, timeout=self._put_seconds)
        except QueueError as error:
            if not error.timed_out:
                raise
            # The queue does not know what its callers' time-outs are set by.
            raise type(error)(f"{error} (spec.training.timeouts.stallSeconds)", timed_out=True) from None
        self._on_stored([uid for (uid, *_), there in zip(groups, stored, strict=True) if there])
        return stored

    def restore(self, frames: Sequence[bytes]) -> list[Group]:
        """Keep exactly these groups, from a checkpoint; `refill` puts them into the queue."""
        groups = [decode_group(frame) for frame in frames]
        now = self._events.clock()
        self._kept = {
            group.uid: (len(group.samples), frame, now) for group, frame in zip(groups, frames, strict=True)
        }
        return groups

    def frames(self) -> list[bytes]:
        """All waiting groups, in wire form."""
        return [frame for _, frame, _ in self._kept.values()]

    def frames_of(self, uids: Sequence[int]) -> list[bytes]:
        """The groups of these uids, which wait, in wire form."""
        return [self._kept[uid][1] for uid in uids]

    def taken(self, step: int, uids: Sequence[int]) -> None:
        """Step `step` begins to train the groups of these uids: records how long they have waited."""
        now = self._events.clock()
        for uid in uids:
            put_at = self._kept[uid][2]
            self._events.add("queue_wait", step, put_at, now - put_at, uid=uid)

    def forget(self, uids: Sequence[int]) -> None:
        """The groups of these uids are trained, and are not kept any more."""
        for uid in uids:
            del self._kept[uid]
