"""When a process counts as ready."""

import http.client
import sys
from pathlib import Path

import pytest

from tools.cluster.processes import Process, ProcessFailed

LASTS = [sys.executable, "-I", "-S", "-c", "import time; time.sleep(60)"]


@pytest.mark.parametrize(
    "trouble", [ConnectionRefusedError(), TimeoutError(), http.client.BadStatusLine("HTTP/1.1")], ids=repr
)
def test_a_server_that_is_just_starting_is_asked_again(tmp_path: Path, trouble: Exception) -> None:
    asked: list[int] = []

    def ready() -> bool:
        asked.append(0)
        if len(asked) < 3:
            raise trouble
        return True

    process = Process("server", LASTS, tmp_path / "log", ready)
    try:
        process.start()
        assert len(asked) == 3
    finally:
        process.stop(kill=True)


def test_one_that_ends_is_told_with_its_words(tmp_path: Path) -> None:
    ends = [sys.executable, "-I", "-S", "-c", "import sys; sys.exit('no such flag')"]
    process = Process("server", ends, tmp_path / "log", lambda: False)
    with pytest.raises(ProcessFailed, match=r"(?s)server ended by itself with exit code 1:.*no such flag"):
        process.start()
