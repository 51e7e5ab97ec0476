"""Conditions that texts decide."""

from itertools import product

import pytest

from rljob_runtime.authoring.verl.conditions import both, either, is_test, matches, negated, truth_of
from rljob_runtime.authoring.verl.variables import Text


def said(words: str) -> bool | None:
    """The truth of a command; `?` is a word that is not known, and `''` an empty one."""
    texts = [
        Text("" if word == "''" else word, 1, "not known" if word == "?" else None) for word in words.split()
    ]
    return truth_of(texts)


@pytest.mark.parametrize(
    ("words", "truth"),
    [
        ("[ a = a ]", True),
        ("[ a == b ]", False),
        ("[ a != b ]", True),
        ("test a = a", True),
        ("[[ a == a ]]", True),
        ("[[ ab == a* ]]", None),
        ("[ a* = a* ]", True),
        ("! [ a = a ]", False),
        ("[ ! a = a ]", False),
        ("[ a ]", True),
        ("[ '' ]", False),
        ("[ ]", False),
        ("[ -n a ]", True),
        ("[ -z a ]", False),
        ("[ -z '' ]", True),
        ("[ 2 -gt 1 ]", True),
        ("[ 2 -le 1 ]", False),
        ("[ 2 -eq 2 ]", True),
        ("[ 2 -ne 2 ]", False),
        ("[ 1 -lt 2 ]", True),
        ("[ 1 -ge 2 ]", False),
        ("[ a -gt 1 ]", None),
        ("[ ? = a ]", None),
        ("[ -f a ]", None),
        ("[ a = a -a b = b ]", None),
        ("[ a = a", None),
        ("grep a b", None),
        ("true", True),
        ("false", False),
        ("! false", True),
        ("", None),
    ],
)
def test_truth(words, truth):
    assert said(words) is truth


@pytest.mark.parametrize(
    ("subject", "pattern", "truth"),
    [
        ("a", "a", True),
        ("a", "b", False),
        ("a", "*", True),
        ("?", "*", True),
        ("?", "a", None),
        ("a", "[ab]", None),
    ],
)
def test_patterns(subject, pattern, truth):
    known = Text(subject, 1, "not known" if subject == "?" else None)
    assert matches(known, Text(pattern, 1)) is truth


def test_three_values():
    for first, second in product((True, False, None), repeat=2):
        possible = {
            (a, b)
            for a in ({first} if first is not None else {True, False})
            for b in ({second} if second is not None else {True, False})
        }
        for combined, result in (
            (both, {a and b for a, b in possible}),
            (either, {a or b for a, b in possible}),
        ):
            assert combined(first, second) is (result.pop() if len(result) == 1 else None)
    assert [negated(truth) for truth in (True, False, None)] == [False, True, None]


def test_what_is_a_test():
    assert [is_test(word) for word in ("[", "[[", "test", "true", "grep", None)] == [True] * 4 + [False] * 2
