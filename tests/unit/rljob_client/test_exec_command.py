"""Credential commands that do not end by themselves."""

import os
import pty
import select
import subprocess
import sys

import pytest

from rljob_client import exec_command
from rljob_client.exec_command import run_command
from rljob_client.exec_config import read_config
from tests.support.operator.operator_site import OWN_PYTHONPATH

CONFIG = {"apiVersion": "v", "command": "./login"}


def program(folder, script):
    (folder / "login").write_text(f"#!/bin/sh\n{script}\n")
    (folder / "login").chmod(0o700)
    return read_config(CONFIG)


class Hanging:
    """A command that waits for another one that it has started. Both hold a pipe open."""

    def __init__(self, folder):
        os.mkfifo(folder / "pipe")
        self._pipe = os.open(folder / "pipe", os.O_RDONLY | os.O_NONBLOCK)
        script = "exec 3> pipe; echo begun >&3; echo open the browser >&2; sleep 300 & wait"
        self.config = program(folder, script)

    def _read(self):
        assert select.select([self._pipe], [], [], 60.0)[0], "neither has ended"
        return os.read(self._pipe, 100)

    def wait_begun(self):
        assert self._read() == b"begun\n"

    def wait_ended(self):
        assert self._read() == b""

    def close(self):
        os.close(self._pipe)


@pytest.fixture
def hanging(tmp_path):
    made = Hanging(tmp_path)
    yield made
    made.close()


@pytest.fixture
def terminal():
    """The other end of a terminal that is this process' standard input."""
    before = os.dup(0)
    ours, theirs = pty.openpty()
    os.dup2(theirs, 0)
    yield ours
    os.dup2(before, 0)
    for number in (before, ours, theirs):
        os.close(number)


def test_a_command_that_hangs_is_stopped_with_all_that_it_started(tmp_path, hanging, monkeypatch):
    monkeypatch.setattr(exec_command, "_SECONDS", 3.0)
    says = (
        r"stopped, since it had not ended within 3 s: run \./login by hand to see what it waits for; where it"
        r" asks for a login, log in first: open the browser"
    )
    with pytest.raises(ValueError, match=says):
        run_command(hanging.config, tmp_path, {})
    hanging.wait_begun()
    hanging.wait_ended()


def test_a_command_can_ask_at_a_terminal(tmp_path, terminal):
    os.write(terminal, b"me\n")
    assert run_command(program(tmp_path, "read name; echo $name"), tmp_path, {}) == b"me\n"


def test_somebody_at_a_terminal_has_more_time(tmp_path, terminal, monkeypatch):
    monkeypatch.setattr(exec_command, "_PERSON_SECONDS", 1.0)
    with pytest.raises(ValueError, match="had not ended within 1 s"):
        run_command(program(tmp_path, "read name; echo $name"), tmp_path, {})


@pytest.mark.parametrize("start_seconds", [0.0, 1.0])
def test_a_command_ends_with_the_process_that_waits_for_it(tmp_path, hanging, start_seconds):
    """Also where it works before its start has returned."""
    script = (
        "import subprocess, sys, threading, time\n"
        "class Popen(subprocess.Popen):\n"
        "    def __init__(self, *arguments, **options):\n"
        "        super().__init__(*arguments, **options)\n"
        f"        time.sleep({start_seconds})\n"
        "subprocess.Popen = Popen\n"
        "from pathlib import Path\n"
        "from rljob_client.exec_command import run_command\n"
        "from rljob_client.exec_config import read_config\n"
        f"arguments = (read_config({CONFIG!r}), Path({str(tmp_path)!r}), {{}})\n"
        "threading.Thread(target=run_command, args=arguments, daemon=True).start()\n"
        "sys.stdin.read()\n"
    )
    environment = {**os.environ, "PYTHONPATH": OWN_PYTHONPATH}
    waiting = subprocess.Popen([sys.executable, "-c", script], stdin=subprocess.PIPE, env=environment)
    hanging.wait_begun()
    waiting.communicate(timeout=60.0)
    assert waiting.returncode == 0
    hanging.wait_ended()


def test_of_many_words_the_last_ones_are_told(tmp_path):
    """A command may trace all that it does; why it failed stands at the end."""
    many = "head -c 3000000 /dev/zero | tr '\\0' x >&2; echo >&2; echo no such account >&2; exit 3"
    with pytest.raises(ValueError, match=r"exit code 3: \.\.\.x+\nno such account$") as caught:
        run_command(program(tmp_path, many), tmp_path, {})
    assert len(str(caught.value)) < 1_100
