"""What is raised in the processes of an engine core, as its host is told it."""

import multiprocessing
import os
import re
import select
import signal
import sys
from types import SimpleNamespace
from typing import Any

import pytest

from rljob_runtime.engines import last_words
from rljob_runtime.engines.last_words import Workers, in_one_line

_DEADLINE = 60.0
SPAWN = multiprocessing.get_context("spawn")


class WorkerProc:
    """As vLLM's: what its constructor raises is kept to the process."""

    def __init__(self, error: Exception | None) -> None:
        if error is not None:
            raise error

    @staticmethod
    def worker_main(error: Exception | None, late: Exception | None, number: int = 0) -> None:
        if number:
            os.kill(os.getpid(), number)
        try:
            WorkerProc(error)
        except Exception:  # noqa: BLE001 - as vLLM does
            return
        if late is not None:
            raise late


@pytest.fixture
def executor(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """What vLLM's module that starts workers is in a core."""
    module = SimpleNamespace(get_mp_context=lambda: SPAWN)
    monkeypatch.setitem(sys.modules, last_words._EXECUTOR, module)
    return module


def start(context: Any, name: str, **arguments: Any) -> int | None:
    """Start a worker as vLLM does; its exit code."""
    process = context.Process(target=WorkerProc.worker_main, kwargs=arguments, name=name, daemon=True)
    process.start()
    process.join(_DEADLINE)
    code: int | None = process.exitcode
    return code


@pytest.mark.parametrize(
    ("error", "late", "said", "code"),
    [
        (ValueError("no memory:\n  3 of 80 GiB"), None, r"ValueError: no memory: 3 of 80 GiB \(in W-1\)", 0),
        (AssertionError(), None, r"AssertionError: at .*test_last_words\.py:\d+, in __init__ \(in W-1\)", 0),
        (None, OSError("no device"), r"OSError: no device \(in W-1\)", 1),
        (None, None, None, 0),
    ],
)
def test_a_worker_tells_what_kept_it_from_starting(
    executor: SimpleNamespace,
    error: Exception | None,
    late: Exception | None,
    said: str | None,
    code: int,
) -> None:
    hearing, saying = SPAWN.Pipe(duplex=False)
    workers = Workers(saying)
    context = executor.get_mp_context()
    # Of all else it is the context that vLLM would have had.
    assert context.get_start_method() == "spawn"
    assert start(context, "W-1", error=error, late=late) == code
    assert workers.killed() == ""
    saying.close()
    if said is None:
        with pytest.raises(EOFError):
            hearing.recv_bytes()
    else:
        assert re.fullmatch(said, hearing.recv_bytes().decode())


def test_a_core_tells_which_of_its_workers_were_killed(executor: SimpleNamespace) -> None:
    _, saying = SPAWN.Pipe(duplex=False)
    workers = Workers(saying)
    for name, number in {"W-0": 0, "W-1": signal.SIGKILL, "W-2": signal.SIGTERM, "W-3": 40}.items():
        code = start(executor.get_mp_context(), name, error=None, late=None, number=number)
        assert code == -number
    assert workers.killed() == "(W-1 was ended by SIGKILL, W-3 was ended by signal 40)"


@pytest.mark.parametrize("modules", [{}, {last_words._EXECUTOR: SimpleNamespace()}])
def test_a_core_without_such_workers_is_left_as_it_is(
    monkeypatch: pytest.MonkeyPatch, modules: dict[str, Any]
) -> None:
    monkeypatch.delitem(sys.modules, last_words._EXECUTOR, raising=False)
    for name, module in modules.items():
        monkeypatch.setitem(sys.modules, name, module)
    _, saying = SPAWN.Pipe(duplex=False)
    Workers(saying)
    assert all(vars(module) == {} for module in modules.values())


def test_the_longest_words_go_as_a_whole() -> None:
    """What several processes write to a pipe is not mixed up to this size."""
    longest = in_one_line(ValueError("\U0001f980" * 10_000))
    assert len(longest.encode()) < select.PIPE_BUF - 100
