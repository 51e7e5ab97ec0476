"""What a reward function returned, as numbers.

Guarantees: a reward that is no finite number of a usable size raises, and so does what cannot be read at
all; a part or metric that is no usable number is left out and told, unless the reward is the sum of the
parts. Pure.
"""

import math
import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from numbers import Real
from typing import Any

import msgspec
import numpy as np

from rljob_api.errors import nearest
from rljob_runtime.data.errors import one_line
from rljob_runtime.rewards import RewardResult

LARGEST = 1e6
"""Largest size of a reward: beyond it the loss loses its digits, and far beyond it is infinite."""
MOST_NAMES = 32
"""Parts and metrics together: each is a curve, and stands with every response that is kept."""
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_-]{0,47}")
_NAME_IN_WORDS = "a name has up to 48 letters, digits, _ and -, no digit or - first"
_KEYS = list(RewardResult.__struct_fields__)


class RewardFormError(ValueError):
    """A reward function returned what cannot be read, whatever the numbers in it are."""

    def __init__(self, message: str, unquoted: str | None = None) -> None:
        """`unquoted`: the message without what was returned, which may be text of a response; default: it has
        none of that."""
        super().__init__(message)
        self.unquoted = message if unquoted is None else unquoted


class Outcome(msgspec.Struct, frozen=True):
    """A response's reward, as one function or several gave it."""

    value: float
    parts: dict[str, float] = {}
    metrics: dict[str, float | None] = {}
    complaints: dict[str, str] = {}
    """Values that were left out (`metrics.depth`), each with why, in words that quote none of them."""


def outcome_of(returned: Any) -> Outcome:
    """A function's answer: a number, a `RewardResult`, or a dict with its keys. Raises `RewardFormError`;
    ValueError and OverflowError for a reward that is no usable number."""
    if isinstance(returned, RewardResult):
        returned = msgspec.structs.asdict(returned)
    if not isinstance(returned, Mapping):
        return Outcome(to_number(returned))
    given = _read(returned)
    parts, complaints = _numbers("parts", given["parts"])
    metrics, more = _numbers("metrics", given["metrics"])
    if given["reward"] is not None:
        return Outcome(to_number(given["reward"]), parts, metrics, complaints | more)
    if not given["parts"]:
        raise RewardFormError("returned neither a reward nor parts, whose sum it would be")
    if complaints:
        # A sum without it would be another reward.
        name, why = next(iter(complaints.items()))
        raise _unusable_part(name, why, given["parts"][name.removeprefix("parts.")])
    return Outcome(to_number(sum(parts.values())), parts, metrics, more)


def _unusable_part(name: str, why: str, value: Any) -> ValueError:
    """The error of a reward whose part `name` is no usable number; `why`: the complaint about it."""
    ending = "; the reward is the sum of the parts"
    if _is_number(value):
        return ValueError(f"{name}: {why}{ending}")
    return RewardFormError(
        f"{name}: returned {_shown(value)}, not a number{ending}", f"{name}: {why}{ending}"
    )


def combined(outcomes: Sequence[tuple[str, float, Outcome]]) -> Outcome:
    """The sum of several rewards, each a name, a weight and what its function gave. Each is a part under its
    name, without its weight; its own parts and metrics are `NAME/PART`. Raises ValueError, and
    `RewardFormError` for too many of them."""
    value, parts, complaints = 0.0, dict[str, float](), dict[str, str]()
    metrics: dict[str, float | None] = {}
    for name, weight, outcome in outcomes:
        value += weight * outcome.value
        parts[name] = outcome.value
        parts |= {f"{name}/{part}": number for part, number in outcome.parts.items()}
        metrics |= {f"{name}/{metric}": number for metric, number in outcome.metrics.items()}
        for key, why in outcome.complaints.items():
            kind, _, inner = key.partition(".")
            complaints[f"{kind}.{name}/{inner}"] = why
    _check_number_of_names(len(parts) + len(metrics))
    return Outcome(to_number(value), parts, metrics, complaints)


def to_number(value: Any) -> float:
    """The value as a float. Raises `RewardFormError` for what is no number, ValueError for one that is not
    finite or above `LARGEST` in size."""
    number = _finite(value)
    if abs(number) > LARGEST:
        raise ValueError(f"returned {number:g}; a reward lies between {-LARGEST:g} and {LARGEST:g}: scale it")
    return number


def _finite(value: Any) -> float:
    if not _is_number(value):
        raise RewardFormError(
            f"returned {_shown(value)}, not a number", f"returned {_kind(value)}, not a number"
        )
    number = float(value)
    if not math.isfinite(number):
        raise ValueError(f"returned {number}, not a finite number")
    return number


def _is_number(value: Any) -> bool:
    # numpy's numbers are `Real`; its bool is not, and a reward that compares commonly returns it.
    return isinstance(value, Real | np.bool_)


def _shown(value: Any) -> str:
    return "None" if value is None else f"{type(value).__name__} {str(value)[:60]!r}"


def _kind(value: Any) -> str:
    return "None" if value is None else type(value).__name__


def _complaint(error: Exception, value: Any) -> str:
    """Why a value is no usable number, without what it is where that may be text."""
    if isinstance(error, RewardFormError):
        return error.unquoted
    # A number of a user's own type says in its own words that it is none.
    known = type(value).__module__ in ("builtins", "numpy")
    return one_line(error) if known else f"{type(value).__name__} raised {type(error).__name__}"


def _read(returned: Mapping[Any, Any]) -> dict[str, Any]:
    """The keys of `RewardResult`. Raises `RewardFormError`."""
    for key in returned:
        if key not in _KEYS:
            near = nearest(str(key), _KEYS)
            hint = f" Did you mean {near}?" if near else " What a reward is made of goes under parts"
            keys = f"the keys are {', '.join(_KEYS)}."
            raise RewardFormError(f"returned the key {key!r}; {keys}{hint}", f"returned another key; {keys}")
    given: dict[str, Any] = {"reward": returned.get("reward")}
    for key in ("parts", "metrics"):
        given[key] = {} if returned.get(key) is None else returned[key]
        if not isinstance(given[key], Mapping):
            raise RewardFormError(
                f"returned {type(given[key]).__name__} as {key}; it is a dict of numbers by their names"
            )
        for name in given[key]:
            if not _is_name(name):
                raise RewardFormError(
                    f"returned {str(name)[:60]!r} among {key}: {_NAME_IN_WORDS}",
                    f"returned another name among {key}: {_NAME_IN_WORDS}",
                )
    _check_number_of_names(len(given["parts"]) + len(given["metrics"]))
    return given


@lru_cache(maxsize=4 * MOST_NAMES)
def _is_name(name: object) -> bool:
    return isinstance(name, str) and _NAME.fullmatch(name) is not None


def _check_number_of_names(count: int) -> None:
    if count > MOST_NAMES:
        raise RewardFormError(f"returned {count} parts and metrics; there may be {MOST_NAMES} together")


def _numbers(kind: str, given: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, str]]:
    """The values that are usable numbers, and what is wrong with the others."""
    numbers: dict[str, float | None] = {}
    complaints = {}
    for name, value in given.items():
        try:
            if value is None and kind == "metrics":
                numbers[name] = None
            else:
                numbers[name] = to_number(value) if kind == "parts" else _finite(value)
        except (ValueError, OverflowError) as error:
            complaints[f"{kind}.{name}"] = _complaint(error, value)
    return numbers, complaints
