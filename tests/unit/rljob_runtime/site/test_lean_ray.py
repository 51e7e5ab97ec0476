"""Starts of Ray in less time: what is replaced meanwhile, and the process that stands in for Ray's agent."""

import os
import subprocess
import sys
from types import SimpleNamespace

import pytest

from rljob_runtime.site import no_agent
from rljob_runtime.site.lean_ray import replaced


def test_attributes_have_other_values_meanwhile_and_no_new_ones_come() -> None:
    owner = SimpleNamespace(there=1)
    with pytest.raises(KeyError), replaced(owner, there=2, missing=3):
        assert vars(owner) == {"there": 2}
        raise KeyError
    assert vars(owner) == {"there": 1}


def _stand_in(raylet: int) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-I", "-S", no_agent.__file__]
    return subprocess.Popen(command, env={**os.environ, "RAY_RAYLET_PID": str(raylet)})


def test_the_stand_in_ends_with_the_raylet() -> None:
    raylet = subprocess.Popen(["sleep", "600"])
    stand_in = _stand_in(raylet.pid)
    try:
        with pytest.raises(subprocess.TimeoutExpired):
            stand_in.wait(0.3)
        raylet.kill()
        raylet.wait(10)
        assert stand_in.wait(10) == 0
        # One whose raylet has ended before it looks.
        late = _stand_in(raylet.pid)
        assert late.wait(10) == 0
    finally:
        raylet.kill()
        stand_in.kill()
