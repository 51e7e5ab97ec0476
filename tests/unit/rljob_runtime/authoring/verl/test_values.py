"""Values of Hydra overrides."""

import pytest

from rljob_runtime.authoring.verl.values import Unfit, items, of_kind, scalar


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("null", None),
        ("None", None),
        ("True", True),
        ("false", False),
        ("3", 3),
        ("-1", -1),
        ("5e-7", 5e-7),
        (".5", 0.5),
        ("1.0", 1.0),
        ("'3'", "3"),
        ('"a b"', "a b"),
        ("a", "a"),
        ("", ""),
        ("[a,b]", "[a,b]"),
    ],
)
def test_scalars(text, value):
    assert scalar(text) == value
    assert type(scalar(text)) is type(value)


@pytest.mark.parametrize(
    ("text", "values"),
    [("[a,'b c', 3]", ["a", "b c", 3]), ("[]", []), ("a", ["a"]), ("(0.9, 0.95)", [0.9, 0.95])],
)
def test_items(text, values):
    assert items(text) == values


@pytest.mark.parametrize(
    ("text", "kind", "value"),
    [
        ("3", "integer", 3),
        ("3.0", "integer", 3),
        ("3", "number", 3.0),
        ("3", "text", "3"),
        ("true", "text", "true"),
        ("True", "flag", True),
        ("null", "number", None),
    ],
)
def test_of_kind(text, kind, value):
    assert of_kind(text, kind) == value


@pytest.mark.parametrize(
    ("text", "kind", "words"),
    [
        ("a", "integer", "it must be a whole number"),
        ("1.5", "integer", "it must be a whole number"),
        ("True", "integer", "it must be a whole number"),
        ("a", "number", "it must be a number"),
        ("1", "flag", "it must be True or False"),
        (
            "${oc.env:X}",
            "text",
            "it refers to another key of verl's configuration (${...}), which is not read",
        ),
    ],
)
def test_unfit(text, kind, words):
    with pytest.raises(Unfit) as caught:
        of_kind(text, kind)
    assert str(caught.value) == words
