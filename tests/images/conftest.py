"""Images are built once the tests are collected, so that no test's time limit holds for it.

Where they cannot be built the tests that need them are skipped and say what is missing. Where CI is set, that
is an error.
"""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tools.cluster import CannotBuild, images

BUILT = pytest.StashKey[dict[str, images.Built | Exception]]()
HERE = Path(__file__).parent
TEST_SECONDS = 400.0
"""For a test alone: its fixtures unpack gigabytes."""
WANTED = {"operator": "operator", "runtime_cpu": "runtime-cpu"}
"""The image that a fixture needs."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if HERE in item.path.parents and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(TEST_SECONDS, func_only=True))


def pytest_collection_finish(session: pytest.Session) -> None:
    built: dict[str, images.Built | Exception] = {}
    session.config.stash[BUILT] = built
    if session.config.option.collectonly:
        return
    fixtures = {name for item in session.items for name in _fixtures(item)}
    capture = session.config.pluginmanager.getplugin("capturemanager")
    for fixture in sorted(WANTED.keys() & fixtures):
        try:
            with capture.global_and_fixture_disabled():
                built[fixture] = images.build(WANTED[fixture], lambda line: print(line, flush=True))
        except CannotBuild as error:
            built[fixture] = error


def _fixtures(item: pytest.Item) -> set[str]:
    """What a test asks for, by name or as its parameter `fixture`."""
    parameters = (
        item.callspec.params if isinstance(item, pytest.Function) and hasattr(item, "callspec") else {}
    )
    return {*getattr(item, "fixturenames", ()), parameters.get("fixture", "")}


def _built(config: pytest.Config, fixture: str) -> images.Built:
    found = config.stash[BUILT][fixture]
    if isinstance(found, images.Built):
        return found
    if os.environ.get("CI"):
        pytest.fail(str(found), pytrace=False)
    pytest.skip(str(found))


@pytest.fixture(scope="session")
def operator(pytestconfig: pytest.Config) -> images.Built:
    """The operator's image."""
    return _built(pytestconfig, "operator")


@pytest.fixture(scope="session")
def runtime_cpu(pytestconfig: pytest.Config) -> images.Built:
    """The runtime's image for CPUs."""
    return _built(pytestconfig, "runtime_cpu")


@pytest.fixture(scope="module")
def operator_files(operator: images.Built) -> Iterator[Path]:
    """The root of a container of the operator."""
    with images.unpacked(operator) as root:
        yield root


@pytest.fixture(scope="module")
def runtime_files(runtime_cpu: images.Built) -> Iterator[Path]:
    """The root of a container of the runtime for CPUs."""
    with images.unpacked(runtime_cpu) as root:
        yield root
