"""Integer arithmetic as bash has it."""

import pytest

from rljob_runtime.authoring.verl.arithmetic import ArithmeticFault, evaluate


def no_variable(name: str) -> str:
    raise ArithmeticFault(f"{name} is not set")


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("", 0),
        ("1 + 2 * 3", 7),
        ("(1 + 2) * 3", 9),
        ("7 / 2", 3),
        ("-7 / 2", -3),
        ("7 / -2", -3),
        ("-7 % 3", -1),
        ("7 % -3", 1),
        ("2 ** 3 ** 2", 512),
        ("--3 - +2", 1),
        ("10 - 2 - 3", 5),
        ("64 / 8 / 2", 4),
    ],
)
def test_values(expression, value):
    assert evaluate(expression, no_variable) == value


@pytest.mark.parametrize(
    ("expression", "words"),
    [
        ("1 +", "it ends too early"),
        ("1 2", "2 is not expected there"),
        (") 1", ") is not expected there"),
        ("(1", "a ( is not closed"),
        ("1 % 0", "it divides by 0"),
        ("2 ** -1", "an exponent must be from 0 to 63"),
        ("08", "08 is no number"),
        ("x", "x is not set"),
        ("1.5", ".5 is not understood in arithmetic"),
        ("9223372036854775807 + 1", "it leaves 64 bits"),
        ("(" * 30 + "1" + ")" * 30, "it is nested too deeply"),
        ("1" + " + 1" * 200, "it is too long"),
    ],
)
def test_faults(expression, words):
    with pytest.raises(ArithmeticFault) as caught:
        evaluate(expression, no_variable)
    assert str(caught.value) == words


def test_variables_are_expressions():
    variables = {"a": "b * 2", "b": "3"}
    assert evaluate("a + 1", variables.__getitem__) == 7
