"""Helm is built once the tests are collected, so that no test's time limit holds for it."""

import os

import pytest

from tools.cluster import CannotBuild
from tools.cluster.binaries import program
from tools.cluster.families import HELM

PROBLEM = pytest.StashKey[Exception]()


def pytest_collection_finish(session: pytest.Session) -> None:
    if session.config.option.collectonly or not any(
        "tests/chart" in str(each.path) for each in session.items
    ):
        return
    capture = session.config.pluginmanager.getplugin("capturemanager")
    try:
        with capture.global_and_fixture_disabled():
            program(HELM, "helm", lambda line: print(line, flush=True))
    except CannotBuild as error:
        session.config.stash[PROBLEM] = error


@pytest.fixture(scope="session", autouse=True)
def helm_is_there(pytestconfig: pytest.Config) -> None:
    if problem := pytestconfig.stash.get(PROBLEM, None):
        if os.environ.get("CI"):
            pytest.fail(str(problem), pytrace=False)
        pytest.skip(str(problem))
