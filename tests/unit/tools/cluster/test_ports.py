"""No two clusters of a machine get the same port, whatever their environment."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tools.cluster import ports
from tools.cluster.ports import Ports

ROOT = Path(__file__).parents[4]
TAKE = """
import sys
from tools.cluster.ports import Ports
taken = Ports()
print(*(taken.take() for _ in range(3)), flush=True)
sys.stdin.read()
"""


@pytest.fixture
def taken():
    made = Ports()
    yield made
    made.give_back()


def test_another_process_with_another_temporary_folder_gets_others(taken, tmp_path):
    mine = {taken.take() for _ in range(3)}
    with subprocess.Popen(
        [sys.executable, "-c", TAKE],
        cwd=ROOT,
        env={**os.environ, "TMPDIR": str(tmp_path)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as other:
        assert other.stdout and other.stdin
        theirs = {int(port) for port in other.stdout.readline().split()}
        assert len(theirs) == 3 and not theirs & mine
        mine |= {taken.take() for _ in range(3)}
        assert len(mine) == 6 and not theirs & mine
        other.kill()


def test_a_port_on_which_something_listens_is_left_out(taken, monkeypatch):
    with socket.socket() as busy:
        busy.bind(("127.0.0.1", 0))
        busy.listen()
        port = busy.getsockname()[1]
        monkeypatch.setattr(ports, "FIRST", port)
        monkeypatch.setattr(ports, "LAST", port)
        with pytest.raises(OSError, match=f"no free port from {port} to {port}"):
            taken.take()


def test_what_is_given_back_can_be_taken_again(taken, monkeypatch):
    # One that clusters which other tests start meanwhile do not look at.
    port = 10_000 + os.getpid() % 10_000
    monkeypatch.setattr(ports, "FIRST", port)
    monkeypatch.setattr(ports, "LAST", port)
    assert taken.take() == port
    with pytest.raises(OSError, match="no free port"):
        Ports().take()
    taken.give_back()
    assert taken.take() == port
