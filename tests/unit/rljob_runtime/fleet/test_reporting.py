"""How often engines report."""

import pytest

from rljob_runtime.fleet.reporting import report_seconds


@pytest.mark.parametrize(("engines", "seconds"), [(1, 0.5), (75, 0.5), (150, 1.0), (1024, 1024 / 150)])
def test_many_engines_report_less_often(engines: int, seconds: float) -> None:
    assert report_seconds(engines) == pytest.approx(seconds)
