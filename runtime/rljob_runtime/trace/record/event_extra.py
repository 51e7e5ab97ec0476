"""What the `extra` of an event may hold: the types and bounds of what figures are made of.

Guarantees: checks all events in one call; other names may have any value.
"""

from collections.abc import Sequence
from typing import Annotated, Any, TypedDict

import msgspec

from rljob_runtime.trace.record.event_log import LATEST, Event, Seconds, Time

_Count = Annotated[int, msgspec.Meta(ge=0, le=2**53)]
"""What a float can hold."""
_Uid = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]
"""Evaluations count theirs down from -1."""
_Value = Annotated[float, msgspec.Meta(ge=-1e15, le=1e15)]
"""A figure of a worker's use: bytes at most."""
_Reward = Annotated[float, msgspec.Meta(ge=-1e100, le=1e100)]
"""So that squares of rewards can be summed."""
_Use = _Value | str | bool | list[Any] | dict[str, Any] | None
"""Where a worker's use has no number, it is left out."""


class _Extra(TypedDict, total=False):
    # generate, evaluate
    request: str
    uid: _Uid
    tokens: _Count
    length: _Count
    finish: str
    left: str
    for_long: bool
    phases: dict[str, Seconds]
    # reward
    rewards: list[_Reward | None]
    waiting: Seconds
    running: Seconds
    teacher: Seconds
    spread: Seconds
    # division
    engines: _Count
    cut: Annotated[float, msgspec.Meta(ge=0, le=LATEST)] | None
    # start
    since: Time


def wrong_extra(events: Sequence[Event]) -> str | None:
    """What is wrong with the `extra` of one of these events, the first that is; None where nothing is."""
    try:
        msgspec.convert([event.extra for event in events], list[_Extra])
        msgspec.convert([event.extra for event in events if event.event == "usage"], list[dict[str, _Use]])
    except msgspec.ValidationError as error:
        return str(error)
    return None
