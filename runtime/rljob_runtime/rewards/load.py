"""Loads the reward function that "module:function" names."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from rljob_runtime.own_functions import ArgumentError, Call, FunctionLoadError, load_function
from rljob_runtime.rewards import RewardInput

ONE_AT_A_TIME = "a reward takes one RewardInput, and returns one reward (docs/rewards.md)"
_TRL, _VERL = "a reward of TRL", "a reward of verl"
_CALL = Call(
    ("the RewardInput",),
    "reward.arguments",
    foreign={"prompts": _TRL, "completions": _TRL, "data_source": _VERL, "solution_str": _VERL},
    instead=f"here {ONE_AT_A_TIME}",
)


class Refusal(msgspec.Struct, frozen=True):
    """Why one of a job's reward functions cannot be used, as it travels between processes."""

    message: str
    call: int
    """Which function of the job, from 0."""
    of_arguments: bool
    """Whether it is about the function's arguments, and not about the function."""
    argument: str | None
    """The one that is not right; None where one is missing."""


def refusal_of(error: FunctionLoadError, call: int) -> Refusal:
    """Why the job's function `call`, from 0, cannot be used."""
    if isinstance(error, ArgumentError):
        return Refusal(str(error), call, of_arguments=True, argument=error.argument)
    return Refusal(str(error), call, of_arguments=False, argument=None)


def load_reward(
    path: str, arguments: Mapping[str, Any], search_path: Sequence[Path] = ()
) -> Callable[[RewardInput], Any]:
    """The function at `path` with `arguments` bound, as `load_function`."""
    return load_function(path, arguments, search_path, _CALL)
