"""Which tests of a tier go to the same worker, and that a worker is given no more than it can begin."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.scheduling import TOGETHER, unit_of_apiserver, unit_of_runtime

ROOT = Path(__file__).parents[3]
CONTRACT = "tests/runtime/test_engine_contract.py"


@pytest.mark.parametrize(
    ("nodeid", "unit"),
    [
        ("tests/runtime/test_vllm_engine.py::test_close", "tests/runtime/test_vllm_engine.py"),
        (
            "tests/runtime/test_run_modes.py::test_a[sync]",
            "tests/runtime/test_run_modes.py::test_a[sync]",
        ),
        (f"{CONTRACT}::test_pause[vllm-keep]", f"{CONTRACT} vllm"),
        (f"{CONTRACT}::test_start[vllm]", f"{CONTRACT} vllm"),
        (f"{CONTRACT}::test_start[torch, fed over tcp]", f"{CONTRACT} torch, fed over tcp"),
        (f"{CONTRACT}::test_refused[torch-5-0-max_tokens is 0]", f"{CONTRACT} torch"),
    ],
)
def test_units_of_the_runtime(nodeid, unit):
    assert unit_of_runtime(nodeid) == unit


@pytest.mark.parametrize(
    ("nodeid", "unit"),
    [
        ("tests/apiserver/test_render.py::test_a[1.5.1]", "KubeRay 1.5.1"),
        ("tests/apiserver/test_cluster.py::test_a[1.4.2-nvidia.com/gpu]", "KubeRay 1.4.2"),
        ("tests/apiserver/test_render.py::test_a[1.6.2]", "tests/apiserver/test_render.py::test_a[1.6.2]"),
        ("tests/apiserver/test_chart.py::TestLife::test_a", "the chart"),
        ("tests/apiserver/test_refused.py::test_a[no model]", "refused jobs"),
        ("tests/apiserver/test_drive.py::test_a", "runs"),
        ("tests/apiserver/test_drive_changes.py::test_b", "runs"),
        ("tests/apiserver/test_scaling.py::test_a", "tests/apiserver/test_scaling.py::test_a"),
    ],
)
def test_units_of_the_api_servers_tests(nodeid, unit):
    assert unit_of_apiserver(nodeid, "1.6.2") == unit


def test_files_that_stay_together_exist():
    assert {each for each in TOGETHER if not (ROOT / "tests" / "apiserver" / each).exists()} == set()


CONFTEST = """
from tests.support.scheduling import Together
def pytest_xdist_make_scheduler(config, log):
    return Together(config, log, lambda nodeid: nodeid.split("[")[1][0])
"""
TESTS = """
import os, pytest
@pytest.mark.parametrize("name", ["a1", "b1", "a2", "c1", "b2", "a3", "d1", "e1"])
def test(name, record_property):
    with open(os.environ["TOLD"], "a") as told:
        told.write(f"{os.environ['PYTEST_XDIST_WORKER']} {name}\\n")
"""


def test_units_stay_together_and_every_test_runs_once(tmp_path, monkeypatch):
    (tmp_path / "conftest.py").write_text(CONFTEST)
    (tmp_path / "test_it.py").write_text(TESTS)
    monkeypatch.setenv("TOLD", str(tmp_path / "told"))
    monkeypatch.delenv("PYTEST_ADDOPTS", raising=False)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-n", "2", "-q", str(tmp_path)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=100)
    assert "8 passed" in done.stdout, done.stdout
    told = [line.split() for line in (tmp_path / "told").read_text().splitlines()]
    assert sorted(name for _, name in told) == ["a1", "a2", "a3", "b1", "b2", "c1", "d1", "e1"]
    for unit in "ab":
        assert len({worker for worker, name in told if name[0] == unit}) == 1
