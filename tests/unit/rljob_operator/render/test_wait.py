"""The script by which Ray's container waits for the driver's checkpoint, with real processes."""

import subprocess
import sys
import time
import uuid

import pytest

from rljob_operator.render.pods import wait_script

SECONDS = 20


@pytest.fixture
def argument():
    """An argument that no other process of this machine has."""
    return f"drive-{uuid.uuid4().hex}"


def start(*command):
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)


def test_it_waits_until_the_driver_has_ended(argument):
    wait_for_input = "import sys; print(flush=True); sys.stdin.read()"
    driver = start(sys.executable, "-c", wait_for_input, argument)
    try:
        driver.stdout.readline()
        waiting = start("/bin/bash", "-c", wait_script(argument))
        try:
            with pytest.raises(subprocess.TimeoutExpired):
                waiting.wait(1.5)
            driver.communicate(b"")
            assert waiting.wait(SECONDS) == 0
        finally:
            waiting.kill()
            waiting.wait()
    finally:
        driver.kill()
        driver.wait()


@pytest.mark.parametrize("other", ["before-{}", "{}-after", "rljob {}"])
def test_it_does_not_wait_for_others(argument, other):
    """Nor for itself: its own command line has the argument in its text."""
    process = start(sys.executable, "-c", "import sys; sys.stdin.read()", other.format(argument))
    try:
        begun = time.monotonic()
        subprocess.run(["/bin/bash", "-c", wait_script(argument)], check=False, timeout=SECONDS)
        assert time.monotonic() - begun < SECONDS
    finally:
        process.kill()
        process.wait()
