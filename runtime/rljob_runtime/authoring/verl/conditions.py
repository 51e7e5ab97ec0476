"""Conditions of a shell script, as far as texts decide them.

Guarantees: what rests on a text that is not known, on a file or on a command is neither true nor false.
"""

import re
from collections.abc import Sequence
from typing import TypeAlias

from rljob_runtime.authoring.verl.variables import Text

Truth: TypeAlias = bool | None
"""None: not known."""

_CLOSED_BY = {"[": "]", "[[": "]]"}
_GLOB = re.compile(r"[*?\[]")
_NUMBERS = ("-eq", "-ne", "-lt", "-le", "-gt", "-ge")


def is_test(word: str | None) -> bool:
    """Whether a command with this first word is a test."""
    return word in ("[", "[[", "test", "true", ":", "false")


def truth_of(words: Sequence[Text]) -> Truth:
    """What a command says as a condition, by its words after expansion: `[ a = b ]`, `[[ ... ]]`, `test`,
    `true`, `false`, each with `!` before it or not."""
    if words and words[0].text == "!":
        return negated(truth_of(words[1:]))
    if not words or not all(word.certain for word in words):
        return None
    name, *rest = [word.text for word in words]
    if name in ("true", ":", "false"):
        return name != "false"
    if name in _CLOSED_BY:
        if not rest or rest[-1] != _CLOSED_BY[name]:
            return None
        rest = rest[:-1]
    elif name != "test":
        return None
    return _tested(rest, patterns=name == "[[")


def matches(subject: Text, pattern: Text) -> Truth:
    """Whether a `case` of the subject takes a branch by its pattern."""
    if pattern.text == "*":
        return True
    if not subject.certain or not pattern.certain or _GLOB.search(pattern.text):
        return None
    return subject.text == pattern.text


def negated(truth: Truth) -> Truth:
    """Not `truth`."""
    return None if truth is None else not truth


def both(first: Truth, second: Truth) -> Truth:
    """`first && second`."""
    if first is False or second is False:
        return False
    return None if first is None or second is None else True


def either(first: Truth, second: Truth) -> Truth:
    """`first || second`."""
    return negated(both(negated(first), negated(second)))


def _tested(words: list[str], patterns: bool) -> Truth:
    """What is between the brackets; with `patterns` what is right of = may be one."""
    if words[:1] == ["!"]:
        return negated(_tested(words[1:], patterns))
    match words:
        case []:
            return False
        case [word]:
            return word != ""
        case ["-n", word]:
            return word != ""
        case ["-z", word]:
            return word == ""
        case [left, "=" | "==", right]:
            return None if patterns and _GLOB.search(right) else left == right
        case [left, "!=", right]:
            return None if patterns and _GLOB.search(right) else left != right
        case [left, sign, right] if sign in _NUMBERS:
            return _compared(left, sign, right)
    return None


def _compared(left: str, sign: str, right: str) -> Truth:
    try:
        first, second = int(left), int(right)
    except ValueError:
        return None
    return {
        "-eq": first == second,
        "-ne": first != second,
        "-lt": first < second,
        "-le": first <= second,
        "-gt": first > second,
        "-ge": first >= second,
    }[sign]
