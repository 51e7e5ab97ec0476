"""Values of Hydra overrides: text to numbers, truth values and lists."""

import re
from typing import Literal, TypeAlias

Kind: TypeAlias = Literal["text", "integer", "number", "flag"]
Scalar: TypeAlias = str | int | float | bool | None

_INTEGER = re.compile(r"[-+]?[0-9][0-9_]*")
_NUMBER = re.compile(r"[-+]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][-+]?[0-9]+)?")
_WORDS = {"integer": "a whole number", "number": "a number", "flag": "True or False", "text": "a text"}


class Unfit(ValueError):
    """The value is of another kind; the message says what is expected, as a clause."""


def scalar(text: str) -> Scalar:
    """What one value means to Hydra; a list or a mapping stays text."""
    text = text.strip()
    if len(text) >= 2 and text[0] == text[-1] and text[0] in "'\"":
        return text[1:-1]
    if text.lower() in ("null", "none"):
        return None
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    if _INTEGER.fullmatch(text) and len(text) < 30:
        return int(text)
    if _NUMBER.fullmatch(text) and len(text) < 60:
        return float(text)
    return text


def items(text: str) -> list[Scalar]:
    """The items of `[a,b]` or `(a,b)`, or the value itself as the only one."""
    text = text.strip()
    if len(text) >= 2 and text[0] in "[(" and text[-1] in "])":
        return [scalar(item) for item in text[1:-1].split(",") if item.strip()]
    return [scalar(text)]


def of_kind(text: str, kind: Kind) -> Scalar:
    """The value as one of a kind, or None for null; raises `Unfit`."""
    if "${" in text:
        raise Unfit("it refers to another key of verl's configuration (${...}), which is not read")
    value = scalar(text)
    if value is None:
        return None
    if kind == "text":
        return value if isinstance(value, str) else text.strip()
    if kind == "flag" and isinstance(value, bool):
        return value
    if kind == "number" and isinstance(value, int | float) and not isinstance(value, bool):
        return float(value)
    if (
        kind == "integer"
        and isinstance(value, int | float)
        and not isinstance(value, bool)
        and value % 1 == 0
    ):
        return int(value)
    raise Unfit(f"it must be {_WORDS[kind]}")
