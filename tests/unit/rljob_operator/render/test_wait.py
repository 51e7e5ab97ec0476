"""The script by which Ray's container waits for the driver's checkpoint, with real processes."""

import os
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


def start(*command, user=None):
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, user=user)


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


OTHERS = {
    "begins with more": ("before-{}", None),
    "ends with more": ("{}-after", None),
    "has it within": ("rljob {}", None),
    "is another user's": pytest.param(
        ("{}", 65534), marks=pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to start it")
    ),
}


@pytest.mark.parametrize("other", OTHERS.values(), ids=OTHERS)
def test_it_does_not_wait_for_others(argument, other):
    """Nor for itself: its own command line has the argument in its text."""
    text, user = other
    process = start("/bin/bash", "-c", "echo; read", text.format(argument), user=user)
    process.stdout.readline()
    try:
        begun = time.monotonic()
        subprocess.run(["/bin/bash", "-c", wait_script(argument)], check=False, timeout=SECONDS)
        assert time.monotonic() - begun < SECONDS
    finally:
        process.kill()
        process.wait()
