"""Loads the reward function that "module:function" names."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rljob_runtime.own_functions import Call, load_function
from rljob_runtime.rewards import RewardInput

_CALL = Call(("the RewardInput",), "reward.arguments")


def load_reward(
    path: str, arguments: Mapping[str, Any], search_path: Sequence[Path] = ()
) -> Callable[[RewardInput], Any]:
    """The function at `path` with `arguments` bound, as `load_function`."""
    return load_function(path, arguments, search_path, _CALL)
