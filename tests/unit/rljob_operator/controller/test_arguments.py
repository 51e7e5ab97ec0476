"""What the options of `rljob-operator` take, and what they refuse, in words."""

from argparse import ArgumentTypeError

import pytest

from rljob_operator.controller import arguments
from rljob_operator.controller.main import _parser

INTEGER = "is not a whole number of at least 1"


@pytest.mark.parametrize(
    ("kind", "given", "value"),
    [
        (arguments.count, "1", 1),
        (arguments.count, "400", 400),
        (arguments.port, "0", 0),
        (arguments.port, "65535", 65_535),
        (arguments.rate, "0.5", 0.5),
        (arguments.rate, "200", 200.0),
        (arguments.namespace, "a", "a"),
        (arguments.namespace, "team-a1", "team-a1"),
        (arguments.namespace, "n" * 63, "n" * 63),
        (arguments.name, "rljob-operator", "rljob-operator"),
        (arguments.name, "a.b-c", "a.b-c"),
        (arguments.name, "n" * 253, "n" * 253),
    ],
)
def test_a_value(kind, given, value):
    assert kind(given) == value


@pytest.mark.parametrize(
    ("kind", "given", "says"),
    [
        *((arguments.count, given, INTEGER) for given in ("0", "-3", "1.5", "many", "", "nan")),
        *((arguments.port, given, "from 0 to 65535") for given in ("-1", "65536", "http", "")),
        *(
            (arguments.rate, given, "is not a number above 0")
            for given in ("0", "-1", "nan", "inf", "-inf", "", "many")
        ),
        *(
            (arguments.namespace, given, "is no namespace")
            for given in ("", "A_B", "a/b", "a.b", "-a", "a-", "a\n", "n" * 64)
        ),
        *(
            (arguments.name, given, "is no name of an object")
            for given in ("", "A", "a/b", "a..b", ".a", "a.-b", "a\n", "n" * 254)
        ),
    ],
)
def test_what_is_refused(kind, given, says):
    with pytest.raises(ArgumentTypeError, match=says) as caught:
        kind(given)
    assert str(caught.value).startswith(repr(given))


@pytest.mark.parametrize(
    "argument",
    [
        "--workers=0",
        "--burst=0",
        "--writes-per-second=0",
        "--writes-per-second=nan",
        "--writes-per-second=-1",
        "--port=-1",
        "--namespace=",
        "--lease-namespace=A_B",
        "--cluster-lease-namespace=A_B",
        "--lease-name=",
    ],
)
def test_the_command_refuses(capsys, argument):
    with pytest.raises(SystemExit) as ended:
        _parser().parse_args([argument])
    assert ended.value.code == 2
    assert f"argument {argument.split('=')[0]}: " in capsys.readouterr().err


def test_a_name_in_the_environment_is_looked_at_too(monkeypatch, capsys):
    monkeypatch.setenv("RLJOB_LEASE_NAME", "")
    with pytest.raises(SystemExit):
        _parser().parse_args([])
    assert "argument --lease-name: '' is no name of an object" in capsys.readouterr().err


def test_what_is_not_given_passes():
    _parser().parse_args([])
