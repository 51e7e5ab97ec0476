"""The functions that make a job's reward."""

from collections.abc import Sequence
from typing import Any

import msgspec

from rljob_api.data import Reward


class FunctionCall(msgspec.Struct, frozen=True):
    """A reward function and how it is called."""

    function: str
    """`module:function`."""
    arguments: dict[str, Any] = {}
    name: str = ""
    """Of this reward among several; empty where it is the only one."""
    weight: float = 1.0


def calls_of(reward: Reward) -> tuple[FunctionCall, ...]:
    """The functions of `training.reward`, in order."""
    if reward.function is not None:
        return (FunctionCall(reward.function, reward.arguments),)
    return tuple(
        FunctionCall(each.function, {**reward.arguments, **each.arguments}, each.name, each.weight)
        for each in reward.functions or ()
    )


def in_words(calls: Sequence[FunctionCall]) -> str:
    """The field that names the functions, and what it says, for an error message."""
    if len(calls) == 1 and not calls[0].name:
        return f'training.reward.function: "{calls[0].function}"'
    return "training.reward.functions: " + ", ".join(f'"{call.function}"' for call in calls)
