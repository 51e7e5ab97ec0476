"""What a row of prompts is, and how a record of the data becomes one.

Guarantees: a record that is no prompt is refused with its place and field. Pure.
"""

import json
import math
from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol

import msgspec

from rljob_api.data import PromptData
from rljob_runtime.data.errors import DataError, PromptMissing, missing_name
from rljob_runtime.data.images import has_content, medium_of, refusal, suspects

PromptText = str | list[dict[str, str]]
"""A prompt as the data has it: text, or chat messages."""


_OF_MESSAGES = (
    "tool_calls", "tool_call_id", "function_call", "name", "reasoning_content", "reasoning", "thinking",
)  # fmt: skip
"""What chat templates read of a message beside its role and content."""


class Row(msgspec.Struct, frozen=True, omit_defaults=True):
    """One row of the data. Data are recognised by its encoding, in which a default has no entry."""

    prompt: PromptText
    answer: str | None
    fields: dict[str, Any] = {}
    """Further fields for the reward, by the names in data.rewardFields; None where the row lacks one."""
    not_a_number: bool = False
    """Whether the answer is none because a table has NaN there."""

    @property
    def recorded(self) -> "Row":
        """What data are recognised by: without the further fields, as another reward on the same prompts may
        go on from a checkpoint. NaN stands for itself, as in the digests that checkpoints have."""
        return Row(self.prompt, "NaN" if self.not_a_number else self.answer)


class FieldNames(NamedTuple):
    """Which fields of a record are read."""

    prompt: str
    answer: str
    further: tuple[str, ...] = ()


def field_names(data: PromptData) -> FieldNames:
    """As the RLJob names them."""
    return FieldNames(data.prompt_field, data.answer_field, tuple(dict.fromkeys(data.reward_fields)))


class Source(Protocol):
    """Rows by number, from 0."""

    name: str
    """The file, folder or data set."""

    def __len__(self) -> int: ...

    def row(self, index: int) -> Row:
        """Raises `DataError` for a row that is no prompt."""
        ...

    def left_out(self, index: int) -> list[str]:
        """Which of `_OF_MESSAGES` the messages of a row have, that prompts are made without. Raises
        `DataError`."""
        ...

    def where(self, index: int) -> str:
        """How people find the row: `file:line` or `file row n`."""
        ...

    def fields(self) -> list[str]:
        """Names of the fields that the first rows have, `field.inner` for those in an object."""
        ...


def to_row(record: dict[str, Any], names: FieldNames, where: str) -> Row:
    """Check one record. An absent answer is None, and so is NaN; a number becomes its text."""
    prompt, answer = _look_up(record, names.prompt), _look_up(record, names.answer)
    for name in suspects(names.further):
        if has_content(record.get(name)):
            raise DataError(refusal(where, name))
    if prompt is None and names.prompt not in names_of(record):
        there = names_of(record)
        message = f"{where}: {missing_name('field', names.prompt, there)} (see data.promptField)"
        raise PromptMissing(message, there)
    # `bool` by itself: Python's True is an int.
    if isinstance(answer, bool) or not isinstance(answer, str | int | float | None):
        raise DataError(f'{where}: field "{names.answer}" must be text or a number, not {kind_of(answer)}')
    # As tables write a number that is not there.
    not_a_number = isinstance(answer, float) and math.isnan(answer)
    if not_a_number:
        answer = None
    return Row(
        _check_prompt(prompt, names.prompt, where),
        json.dumps(answer) if isinstance(answer, int | float) else answer,
        {name: _plain(_look_up(record, name), name, where) for name in names.further},
        not_a_number,
    )


def left_out_of(record: Mapping[str, Any], names: FieldNames) -> list[str]:
    """`Source.left_out` of a record."""
    prompt = _look_up(record, names.prompt)
    messages = [each for each in prompt if isinstance(each, Mapping)] if isinstance(prompt, list) else []
    # A table gives each message the keys of all, as null.
    return [key for key in _OF_MESSAGES if any(has_content(each.get(key)) for each in messages)]


def _plain(value: Any, field: str, where: str) -> Any:
    """The value, which a reward may be given: it can be sent to another process as it is."""
    if isinstance(value, Mapping):
        return {str(key): _plain(item, field, where) for key, item in value.items()}
    if isinstance(value, list):
        return [_plain(item, field, where) for item in value]
    if isinstance(value, int) and not -(2**63) <= value < 2**64:
        raise DataError(
            f'{where}: field "{field}" has too large an integer: a reward gets integers of 64 bits'
        )
    if not isinstance(value, str | int | float | None):
        raise DataError(
            f'{where}: field "{field}" (see data.rewardFields) has {kind_of(value)}: a reward gets text, '
            "numbers, true or false, null, lists and objects of these"
        )
    return value


def _look_up(record: Mapping[str, Any], field: str) -> Any:
    """The value of a field, None where it is absent; `a.b` is field b of the object in a, where there is no
    field with that very name."""
    if field in record:
        return record[field]
    outer, _, inner = field.partition(".")
    value = record.get(outer)
    return _look_up(value, inner) if inner and isinstance(value, Mapping) else None


def names_of(record: Mapping[str, Any]) -> list[str]:
    """The names that `_look_up` finds something under, without those of whole objects."""
    names = []
    for name, value in record.items():
        inner = names_of(value) if isinstance(value, Mapping) else []
        names += [f"{name}.{each}" for each in inner] or [name]
    return names


def _check_prompt(value: Any, field: str, where: str) -> PromptText:
    if isinstance(value, str):
        if not value:
            raise DataError(f'{where}: field "{field}" is empty')
        return value
    if isinstance(value, Mapping) and isinstance(value.get("content"), str):
        raise DataError(
            f'{where}: field "{field}" is one message and no list of them: write it in a list, or set '
            f"data.promptField: {field}.content"
        )
    if not isinstance(value, list):
        raise DataError(
            f'{where}: field "{field}" must be text or a list of chat messages, not {kind_of(value)}'
        )
    if not value:
        raise DataError(f'{where}: field "{field}" is an empty list of messages')
    return [
        _check_message(message, f'{where}: field "{field}", message {n}') for n, message in enumerate(value)
    ]


def _check_message(message: Any, where: str) -> dict[str, str]:
    if not isinstance(message, dict):
        raise DataError(f'{where} must be an object with "role" and "content", not {kind_of(message)}')
    medium = medium_of(message.get("content"))
    if medium is not None:
        raise DataError(refusal(where, "content", medium))
    if "role" not in message and "from" in message:
        raise DataError(
            f'{where} has "from" and "value": write "role" and "content" in their place, user for human and '
            "assistant for gpt"
        )
    if isinstance(message.get("content"), list):
        raise DataError(f'{where}: "content" is a list of parts: write their texts as one text')
    for key in ("role", "content"):
        if not isinstance(message.get(key), str):
            raise DataError(f'{where}: "{key}" must be text, not {kind_of(message.get(key))}')
    return {"role": message["role"], "content": message["content"]}


def kind_of(value: Any) -> str:
    names = {dict: "an object", list: "a list", str: "text", bool: "true or false", type(None): "null"}
    return names.get(type(value), "a number" if isinstance(value, int | float) else type(value).__name__)
