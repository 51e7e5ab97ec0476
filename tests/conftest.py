"""Settings of the property tests of all tiers."""

import pytest
from hypothesis import HealthCheck, settings

# How long an example takes, or making one, depends on what else the machine does: it is no reason to fail.
settings.register_profile("untimed", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("the same examples", settings.get_profile("untimed"), derandomize=True)


def pytest_configure(config: pytest.Config) -> None:
    """Each test has the same examples in every run, until it is changed; `--hypothesis-seed=N` (or `random`)
    looks for others."""
    seeded = config.getoption("--hypothesis-seed", None) is not None
    settings.load_profile("untimed" if seeded else "the same examples")
