"""What a host of reward workers waits for."""

import os
import signal
import socket
import subprocess

import pytest

from rljob_runtime.rewards import host
from tests.support.runtime.descriptors import many_open


def test_a_host_with_many_workers_sees_the_end_of_a_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of them has open files in the host."""
    with many_open():
        worker = subprocess.Popen(["sleep", "600"], start_new_session=True)
        monkeypatch.setattr(host, "_receive", lambda connection: ([], []))
        monkeypatch.setattr(host, "_start", lambda path, descriptors: worker)
        ours, theirs = socket.socketpair()
        with ours:
            ours.shutdown(socket.SHUT_WR)
            host._host(theirs)
            assert ours.recv(64) == f"{-signal.SIGTERM}\n".encode()
    assert not os.path.exists(f"/proc/{worker.pid}")
