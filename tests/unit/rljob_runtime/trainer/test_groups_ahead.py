"""Groups that are fetched before a step names them: the step gets what it names, whatever happened before."""

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import msgspec
import pytest

from rljob_runtime.queue.client import QueueRefused, QueueUnavailable
from rljob_runtime.samples import encode
from rljob_runtime.trainer.groups_ahead import GroupsAhead
from tests.support.runtime.trainer_ranks import groups

SOON = 20.0
FRAMES = {group.uid: encode(group) for group in groups(8)}


class Queue:
    """Gives any group; `refused` and `broken` ones not. While it is `shut`, calls wait."""

    def __init__(self) -> None:
        self.calls: list[tuple[int, ...]] = []
        self.refused: set[int] = set()
        self.broken: set[int] = set()
        self.open = threading.Event()
        self.open.set()
        self.news = threading.Condition()

    def get(self, uids: Sequence[int]) -> list[bytes]:
        with self.news:
            self.calls.append(tuple(uids))
            self.news.notify_all()
        if not self.open.wait(SOON):
            raise QueueUnavailable("no answer")
        if self.refused & set(uids):
            raise QueueRefused(f"{uids} refused")
        return [b"no group" if uid in self.broken else FRAMES[uid] for uid in uids]

    def called(self, count: int) -> None:
        """Wait until so many calls were made."""
        with self.news:
            assert self.news.wait_for(lambda: len(self.calls) >= count, SOON), self.calls


@contextmanager
def ahead_of(queue: Queue, most: int = 4) -> Iterator[GroupsAhead]:
    made = GroupsAhead(queue.get, most)
    try:
        yield made
    finally:
        queue.open.set()
        made.close()


def taken(ahead: GroupsAhead, *uids: int) -> list[int]:
    return [group.uid for group in ahead.take(uids)]


TOLD: dict[str, tuple[tuple[int, ...], tuple[int, ...], list[tuple[int, ...]]]] = {
    # What was told, what a step takes, and the calls of the queue until it has it, with room for four.
    "nothing": ((), (1, 2), [(1, 2)]),
    "all": ((1, 2), (1, 2), [(1,), (2,)]),
    "in another order": ((2, 1), (1, 2), [(2,), (1,)]),
    "some": ((2,), (1, 2, 3), [(2,), (1, 3)]),
    "others": ((5, 6), (1, 2), [(5,), (6,), (1, 2)]),
    "one twice": ((1, 1), (1,), [(1,)]),
    "more than there is room for": ((0, 1, 2, 3, 4, 5), (0, 1, 4, 5), [(0,), (1,), (2,), (3,), (4, 5)]),
}


@pytest.mark.parametrize(("told", "wanted", "calls"), TOLD.values(), ids=TOLD)
def test_a_step_gets_what_it_names(
    told: tuple[int, ...], wanted: tuple[int, ...], calls: list[tuple[int, ...]]
) -> None:
    queue = Queue()
    with ahead_of(queue) as ahead:
        ahead.tell(told)
        queue.called(min(4, len(set(told))))
        assert taken(ahead, *wanted) == list(wanted)
        assert queue.calls[: len(calls)] == calls


def test_a_group_is_given_once() -> None:
    """Told again, or named again, it is asked for again: whether it may be had is for the queue to say."""
    queue = Queue()
    with ahead_of(queue) as ahead:
        ahead.tell([1])
        queue.called(1)
        assert taken(ahead, 1) == [1]
        assert taken(ahead, 1) == [1]
        assert queue.calls == [(1,), (1,)]


def test_what_a_step_has_taken_is_not_fetched_again() -> None:
    """A queue host that takes another's place has the groups in training again, and those of the step before
    until the driver has heard of its end. No step will name them: they would take the room for ever."""
    queue = Queue()
    with ahead_of(queue, most=2) as ahead:
        assert taken(ahead, 0, 1) == [0, 1]
        assert taken(ahead, 2, 3) == [2, 3]
        ahead.tell([0, 1, 2, 3, 4, 5])
        assert taken(ahead, 4, 5) == [4, 5]
        assert queue.calls[2:3] == [(4,)] and not {0, 1, 2, 3} & {
            uid for call in queue.calls[2:] for uid in call
        }


def test_room_that_a_step_makes_is_used() -> None:
    queue = Queue()
    with ahead_of(queue, most=2) as ahead:
        ahead.tell([0, 1, 2, 3, 4])
        queue.called(2)
        assert taken(ahead, 0, 1) == [0, 1]
        queue.called(4)
        assert queue.calls == [(0,), (1,), (2,), (3,)]
        # Told, and not fetched yet.
        assert taken(ahead, 4) == [4]
        assert queue.calls[4:] == [(4,)]


def test_a_step_waits_for_what_is_being_fetched_and_not_for_what_is_to_be() -> None:
    queue = Queue()
    queue.open.clear()
    with ahead_of(queue) as ahead:
        ahead.tell([1, 2])
        queue.called(1)
        threading.Timer(0.05, queue.open.set).start()
        assert taken(ahead, 1, 2, 3) == [1, 2, 3]
        assert queue.calls == [(1,), (2, 3)]


@pytest.mark.parametrize("how", ["refused", "broken"])
def test_what_fails_ahead_is_told_by_the_step_that_names_it(how: str) -> None:
    queue = Queue()
    getattr(queue, how).add(1)
    with ahead_of(queue, most=1) as ahead:
        ahead.tell([1])
        queue.called(1)
        with pytest.raises(QueueRefused if how == "refused" else msgspec.DecodeError):
            ahead.take([1])
        # It holds no room, and later steps are none the worse.
        getattr(queue, how).clear()
        ahead.tell([2])
        queue.called(3)
        assert taken(ahead, 2, 1) == [2, 1]


def test_what_failed_and_is_never_named_takes_no_room() -> None:
    queue = Queue()
    queue.refused.add(1)
    with ahead_of(queue, most=1) as ahead:
        ahead.tell([1])
        queue.called(1)
        # The thread that fetched it has one thing to do after the other.
        ahead._thread.submit(lambda: None).result(SOON)
        ahead.tell([2])
        queue.called(2)
        assert queue.calls == [(1,), (2,)]
