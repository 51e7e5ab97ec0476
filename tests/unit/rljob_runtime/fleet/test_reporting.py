"""How often engines report."""

import pytest

from rljob_runtime.fleet.reporting import differs, report_seconds


@pytest.mark.parametrize(("engines", "seconds"), [(1, 0.5), (75, 0.5), (150, 1.0), (1024, 1024 / 150)])
def test_many_engines_report_less_often(engines: int, seconds: float) -> None:
    assert report_seconds(engines) == pytest.approx(seconds)


@pytest.mark.parametrize(
    ("told", "seconds", "again"),
    [
        (0.5, 0.5, False),
        (1.0, 1.2, False),
        (1.0, 1.25, True),
        (1.0, 0.81, False),
        (1.0, 0.8, True),
    ],
)
def test_engines_are_told_anew_when_it_matters(told: float, seconds: float, again: bool) -> None:
    assert differs(told, seconds) is again
