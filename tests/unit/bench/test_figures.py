"""What the command lines of benchmarks have in common."""

import pytest

from tests.bench.figures import parser, take_names


@pytest.mark.parametrize(("given", "names"), [([], []), (["b", "a"], ["b", "a"])])
def test_names_are_taken_as_they_come(given: list[str], names: list[str]) -> None:
    line = parser(None)
    take_names(line, {"a": 1, "b": 2}, "LETTER")
    assert line.parse_args(given).names == names


def test_a_name_that_is_not_known_is_told_with_those_that_are(capsys: pytest.CaptureFixture[str]) -> None:
    line = parser(None)
    take_names(line, ["a", "b"], "LETTER")
    with pytest.raises(SystemExit):
        line.parse_args(["a", "c"])
    assert "'c' is not known; known: 'a', 'b'" in capsys.readouterr().err
