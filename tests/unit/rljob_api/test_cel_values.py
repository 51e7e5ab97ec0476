"""The words that the API server adds to a broken rule's message. That it takes the expressions, and that they
say what Python says, tests/apiserver/test_refused.py shows for each rule."""

from typing import ClassVar, Literal

import pytest

from rljob_api.base import Model, OneOf, Rule
from rljob_api.cel_values import message_in_cel


class Choice(OneOf):
    """A union."""

    one_of: ClassVar[tuple[str, ...]] = ("left_hand", "right")

    left_hand: int | None = None
    right: int | None = None


class Below(Model):
    """A model in a model."""

    size: int = 1
    bound: float | None = None


class Whole(Model):
    """All kinds of fields."""

    count: int
    kind: Literal["a", "b"] = "a"
    text: str = ""
    below: Below = Below()
    maybe: Below | None = None
    choice: Choice = Choice(right=1)


CASES: dict[str, tuple[tuple[str, ...], str | None]] = {
    "a text alone": (("text",), None),
    "the object itself": (("",), None),
    "an object": (("below",), None),
    "values that are always there": (
        ("count", "below.size", "kind"),
        '"90 %% (count is %s, below.size is %s, kind is %s)"'
        ".format([string(self.count), string(self.below.size), string(self.kind)])",
    ),
    "one that is not": (
        ("count", "below.bound"),
        '"90 %% (count is %s%s)".format([string(self.count), has(self.below.bound)'
        ' ? ", below.bound is %s".format([string(self.below.bound)]) : ""])',
    ),
    "one that is not before one that is": (
        ("below.bound", "count"),
        '"90 %% (%s%s%s)".format([has(self.below.bound)'
        ' ? "below.bound is %s".format([string(self.below.bound)]) : "",'
        ' (has(self.below.bound)) && true ? ", " : "", "count is %s".format([string(self.count)])])',
    ),
    "none that is always there": (
        ("maybe.size",),
        'has(self.maybe) ? "90 %% (%s)".format([has(self.maybe)'
        ' ? "maybe.size is %s".format([string(self.maybe.size)]) : ""]) : "90 %"',
    ),
    "below a union, whose default is not stored": (
        ("choice.right",),
        'has(self.choice) && has(self.choice.right) ? "90 %% (%s)".format([has(self.choice)'
        ' && has(self.choice.right) ? "choice.right is %s".format([string(self.choice.right)]) : ""])'
        ' : "90 %"',
    ),
}


@pytest.mark.parametrize(("fields", "expression"), CASES.values(), ids=CASES)
def test_values(fields, expression):
    rule = Rule(message="90 %", cel="false", holds=lambda _: False, fields=fields)
    assert message_in_cel(rule, Whole) == expression


def test_the_members_of_a_union_that_are_set():
    [rule] = Choice.all_rules()
    assert message_in_cel(rule, Choice) == (
        '"set exactly one of leftHand, right (found %s)".format([has(self.leftHand) || has(self.right)'
        ' ? ((has(self.leftHand) ? " and leftHand" : "") + (has(self.right) ? " and right" : ""))'
        '.substring(5) : "none"])'
    )
