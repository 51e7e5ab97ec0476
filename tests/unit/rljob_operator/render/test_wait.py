"""The scripts by which the head's other containers wait for the driver's checkpoint, with real processes."""

import os
import subprocess
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


needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to start another user's process")
DRIVERS = {
    "of its own user": (None, True),
    "of another user": pytest.param((65534, False), marks=needs_root),
}


@pytest.mark.parametrize("whose", DRIVERS.values(), ids=DRIVERS)
def test_it_waits_until_the_driver_has_ended(argument, whose):
    user, own = whose
    driver = start("/bin/bash", "-c", "echo; read", argument, user=user)
    try:
        driver.stdout.readline()
        waiting = start("/bin/bash", "-c", wait_script(argument, own))
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
    "begins with more": ("before-{}", None, True),
    "ends with more": ("{}-after", None, True),
    "has it within": ("rljob {}", None, True),
    "is another user's": pytest.param(("{}", 65534, True), marks=needs_root),
    "is not another user's": ("{}", None, False),
}


@pytest.mark.parametrize("other", OTHERS.values(), ids=OTHERS)
def test_it_does_not_wait_for_others(argument, other):
    """Nor for itself: its own command line has the argument in its text."""
    text, user, own = other
    process = start("/bin/bash", "-c", "echo; read", text.format(argument), user=user)
    process.stdout.readline()
    try:
        begun = time.monotonic()
        subprocess.run(["/bin/bash", "-c", wait_script(argument, own)], check=False, timeout=SECONDS)
        assert time.monotonic() - begun < SECONDS
    finally:
        process.kill()
        process.wait()
