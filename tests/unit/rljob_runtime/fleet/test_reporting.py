"""How often engines report."""

import pytest

from rljob_runtime.fleet.reporting import report_seconds


@pytest.mark.parametrize(
    ("engines", "seconds"), [(1, 0.5), (100, 0.5), (125, 0.5), (250, 1.0), (1024, 4.096)]
)
def test_many_engines_report_less_often(engines: int, seconds: float) -> None:
    assert report_seconds(engines) == pytest.approx(seconds)
