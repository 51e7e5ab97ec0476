"""The chart with the operator's image of the last release, and the last chart with this operator."""

import subprocess
import sys

import pytest

from tests.chart.helm import render, the
from tests.support.last_release import THIS_RELEASE, Release

PARSE = "import sys; from rljob_operator.controller.main import _parser; _parser().parse_args(sys.argv[1:])"


@pytest.mark.parametrize("ours", ["the chart", "the image"])
def test_the_operator_takes_the_charts_arguments(last_release: Release, ours: str) -> None:
    chart, image = (THIS_RELEASE, last_release) if ours == "the chart" else (last_release, THIS_RELEASE)
    made = render({"runtimeImages": {"cpu": "r:cpu"}}, chart=chart.chart)
    [container] = the(made, "Deployment")["spec"]["template"]["spec"]["containers"]
    command = [sys.executable, "-c", PARSE, *container["args"]]
    done = subprocess.run(command, env=image.environment, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
