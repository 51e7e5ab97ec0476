"""How several workers (`pytest -n`) share a tier's tests: what has a costly fixture in common stays together.

In a conftest.py:

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_make_scheduler(config, log):
        return Together(config, log, unit_of_runtime)
"""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from xdist.scheduler.loadscope import LoadScopeScheduling

TOGETHER = {
    "test_chart.py": "the chart",
    "test_drive.py": "runs",
    "test_drive_changes.py": "runs",
    "test_last_release.py": "releases",
    "test_refused.py": "refused jobs",
    "test_version_skew.py": "releases",
}
"""Files of the API server's tests, and the unit that all their tests belong to: they share a cluster of their
own, or hundreds of objects that each worker would make again, or each needs a core, so that several at once
would only wait for each other."""


def unit_of_apiserver(nodeid: str, chosen: str) -> str:
    """What runs in one worker: all tests of another version of KubeRay than the chosen one, which takes
    seconds to start, and each unit of `TOGETHER`. All others go one by one to whoever is free."""
    if (found := re.search(r"\[(\d+\.\d+\.\d+)[-\]]", nodeid)) and found[1] != chosen:
        return f"KubeRay {found[1]}"
    return TOGETHER.get(Path(nodeid.partition("::")[0]).name, nodeid)


def unit_of_runtime(nodeid: str) -> str:
    """What runs in one worker: a file, whose tests share engines or a Ray; of the contract of all engines,
    the tests of one engine. Tests of whole runs start all that they need: they go one by one."""
    file = nodeid.partition("::")[0]
    if Path(file).name.startswith("test_run_"):
        return nodeid
    if Path(file).name == "test_engine_contract.py" and (engine := re.search(r"\[([^-\]]*)", nodeid)):
        return f"{file} {engine[1]}"
    return file


class Together(LoadScopeScheduling):  # type: ignore[misc]
    """Each worker takes one unit of tests after the other; the units with most tests go first."""

    def __init__(self, config: pytest.Config, log: Any, unit: Callable[[str], str]) -> None:
        """`unit` names what a test, given by its node id, belongs to."""
        super().__init__(config, log)
        self._unit = unit

    def _split_scope(self, nodeid: str) -> str:
        return self._unit(nodeid)

    def _reschedule(self, node: Any) -> None:
        # A worker begins a test once it knows the next one. The original hands out two more beforehand, and
        # in the end some workers have three long tests to go while others have none.
        if node.shutting_down or not self.workqueue or self._pending_of(self.assigned_work[node]) < 2:
            super()._reschedule(node)
