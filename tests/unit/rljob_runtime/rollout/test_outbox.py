"""What the outbox makes of the queue's answers."""

from collections.abc import Sequence
from typing import Any, cast

import numpy as np
import pytest

from rljob_runtime.queue.broker import Broker, Stored
from rljob_runtime.queue.client import QueueError, QueueTimeout, QueueUnavailable
from rljob_runtime.queue.wire import QueuedGroup
from rljob_runtime.rollout.outbox import Outbox, StaleGroup
from rljob_runtime.samples import Group
from rljob_runtime.trace.record.event_log import EventLog


class Queue:
    """The queue's rules; every put comes to it `repeats` times, as after a lost answer."""

    def __init__(self, repeats: int = 1) -> None:
        self.broker = Broker(8, lease_seconds=10.0)
        self.broker.touch("driver", 0.0)
        self.repeats = repeats

    async def put(self, groups: Sequence[tuple[int, int, bytes]], timeout: float) -> list[bool]:
        for number in range(self.repeats):
            (outcome,) = self.broker.put(("driver", number), [QueuedGroup(*group) for group in groups])
        assert isinstance(outcome, Stored)
        return list(outcome.accepted)


def outbox(queue: Queue) -> Outbox:
    return Outbox(cast(Any, queue), EventLog(None, 0, "driver", "driver"), 10.0)


def group(uid: int, version: int = 0) -> Group:
    return Group(uid, 0, uid, np.full(2, 7, np.int32), (), version)


async def test_a_put_that_is_repeated_is_the_same_group() -> None:
    queue = Queue(repeats=2)
    box = outbox(queue)
    await box(group(3))
    assert await box.refill() == 1
    assert [held.frame for held in queue.broker._held.values()] == box.frames()


class FailingQueue:
    """A queue whose puts end with an error."""

    def __init__(self, error: QueueError) -> None:
        self.error = error

    async def put(self, groups: Sequence[tuple[int, int, bytes]], timeout: float) -> list[bool]:
        raise self.error


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (
            QueueTimeout("no room for group 3 within 10 s", timed_out=True),
            "no room for group 3 within 10 s (spec.training.timeouts.stallSeconds)",
        ),
        (
            QueueUnavailable("no answer within 10 s", timed_out=True),
            "no answer within 10 s (spec.training.timeouts.stallSeconds)",
        ),
        (QueueUnavailable("this client was closed"), "this client was closed"),
    ],
)
async def test_a_put_that_takes_too_long_names_the_field_that_says_how_long(
    error: QueueError, told: str
) -> None:
    box = outbox(cast(Any, FailingQueue(error)))
    for put in (lambda: box(group(3)), box.refill):
        with pytest.raises(type(error)) as raised:
            await put()
        assert str(raised.value) == told


async def test_who_is_to_know_is_told_what_the_queue_has() -> None:
    """Not of a group that it refuses, which is trained; again of one that is put again."""
    queue, told = Queue(), list[Sequence[int]]()
    box = Outbox(cast(Any, queue), EventLog(None, 0, "driver", "driver"), 10.0, told.append)
    await box(group(3))
    await box(group(4))
    queue.broker.ack([3], 0)
    await box.refill()
    assert told == [[3], [4], [4]]


async def test_another_group_of_the_prompt_is_an_error() -> None:
    queue = Queue()
    await outbox(queue)(group(3))
    with pytest.raises(StaleGroup, match="group 3"):
        await outbox(queue)(group(3, version=1))


async def test_a_group_that_is_trained_is_an_error_but_may_be_refilled() -> None:
    queue = Queue()
    box = outbox(queue)
    await box(group(3))
    queue.broker.ack([3], 0)
    assert await box.refill() == 1
    assert queue.broker._held == {}
    with pytest.raises(StaleGroup, match="group 3"):
        await box(group(3))
