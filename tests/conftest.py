"""Settings of all tiers: threads, and examples of the property tests; and the last release, for tests that
compare with it."""

import gc
import logging
import os
from collections.abc import Generator

import pytest
from hypothesis import HealthCheck, settings

from tests.support.depth import examples
from tests.support.last_release import NoHistory, Release, unpack

# Several processes of tests share the cores, and torch's threads wait for each other in busy loops: beside
# other work two of them take ten times as long as one. Read when torch is imported; a job sets those of its
# own processes.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# How long an example takes, or making one, depends on what else the machine does: it is no reason to fail.
untimed = settings(max_examples=examples(100), deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("untimed", untimed)
settings.register_profile("the same examples", settings.get_profile("untimed"), derandomize=True)


def pytest_configure(config: pytest.Config) -> None:
    """Each test has the same examples in every run, until it is changed; `--hypothesis-seed=N` (or `random`)
    looks for others."""
    seeded = config.getoption("--hypothesis-seed", None) is not None
    settings.load_profile("untimed" if seeded else "the same examples")


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """What is made while tests are collected stays to the end: garbage collections, which would take a tenth
    of the unit tests' time, need not look at it. Nor does pytest, six times for each test, have to add its
    handlers to each of torch's 66 loggers that pass nothing on: they do."""
    gc.disable()
    try:
        return (yield)
    finally:
        for name, logger in logging.root.manager.loggerDict.items():
            if name.startswith("torch") and isinstance(logger, logging.Logger):
                logger.propagate = True
        gc.freeze()
        gc.enable()


@pytest.fixture(scope="session")
def last_release(tmp_path_factory: pytest.TempPathFactory) -> Release:
    """The files of the last release."""
    try:
        return unpack(tmp_path_factory.mktemp("release"))
    except NoHistory as error:
        if os.environ.get("CI"):
            pytest.fail(str(error), pytrace=False)
        pytest.skip(str(error))
