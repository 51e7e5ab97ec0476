"""The process that waits to become an engine core."""

import importlib
import multiprocessing
import os
import re
import signal
from pathlib import Path

import pytest
import setproctitle

from rljob_runtime.engines import early_core
from rljob_runtime.engines.early_core import EarlyCore

_DEADLINE = 60.0


@pytest.fixture
def early(monkeypatch: pytest.MonkeyPatch) -> EarlyCore:
    """One that imports nothing: what it imports is vLLM's, and takes a while."""
    monkeypatch.setattr(early_core, "_imported", lambda accelerator: ("no_such_module_anywhere",))
    monkeypatch.setenv("RLJOB_GONE_LATER", "yes")
    return EarlyCore("cpu")


def test_what_vllm_starts_runs_in_it_with_the_environment_of_then(
    early: EarlyCore, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("RLJOB_SET_LATER", "yes")
    monkeypatch.delenv("RLJOB_GONE_LATER")
    kept, named = tmp_path / "told", tmp_path / "named"
    # As vLLM does: a context, a process of it, its start.
    context = early_core._Context(early)
    process = context.Process(target=write, name="EngineCore", kwargs={"where": kept, "name": named})
    process.start()
    process.join(_DEADLINE)
    assert process.exitcode == 0
    assert kept.read_text() == f"{process.pid} yes None"
    assert "EngineCore" in named.read_text()
    assert process.pid == early.process.pid
    # It is vLLM's by now.
    early.close()


def write(where: Path, name: Path) -> None:
    later, gone = (os.environ.get(each) for each in ("RLJOB_SET_LATER", "RLJOB_GONE_LATER"))
    where.write_text(f"{os.getpid()} {later} {gone}")
    # As vLLM names its cores.
    setproctitle.setproctitle("VLLM::EngineCore")
    name.write_bytes(Path("/proc/self/cmdline").read_bytes())


@pytest.mark.parametrize(
    ("raised", "said"),
    [
        (ImportError("no libfoo.so:\n  it is not there"), "ImportError: no libfoo.so: it is not there"),
        (AssertionError(), r"AssertionError: at .*test_early_core\.py:\d+, in end_with"),
        (ValueError("x" * 1000), f"ValueError: {'x' * 588} …"),
        (None, ""),
    ],
)
def test_what_is_raised_in_it_is_told(early: EarlyCore, raised: Exception | None, said: str) -> None:
    early.run(end_with, {"error": raised})
    assert re.fullmatch(said, early.last_words(_DEADLINE))
    early.process.join(_DEADLINE)
    assert early.process.exitcode == (1 if raised else 0)
    assert early.last_words() == ""


def end_with(error: Exception | None) -> None:
    if error is not None:
        raise error


def test_it_writes_where_its_host_does_by_then(early: EarlyCore, tmp_path: Path) -> None:
    """A worker that is begun early learns later where it logs."""
    log = tmp_path / "fast-0.log"
    kept = [os.dup(standard) for standard in (1, 2)]
    try:
        with log.open("w") as file:
            for standard in (1, 2):
                os.dup2(file.fileno(), standard)
        early.run(say, {})
        early.process.join(_DEADLINE)
    finally:
        for standard, before in zip((1, 2), kept, strict=True):
            os.dup2(before, standard)
            os.close(before)
    assert sorted(log.read_text().split()) == ["error", "output"]


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_one_that_has_ended_before_it_is_told_says_how(early: EarlyCore, number: signal.Signals) -> None:
    assert early.process.pid is not None
    os.kill(early.process.pid, number)
    early.process.join(_DEADLINE)
    with pytest.raises(RuntimeError, match=f"engine core was ended by {number.name} before it was told"):
        early.run(say, {})


def test_what_it_cannot_import_is_told(
    early: EarlyCore, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """As vLLM's engine core where a library of it does not fit; all of it stands where its host logs."""
    (tmp_path / "only_here.py").write_text("def run(): pass")
    # The process has begun, and does not look there.
    monkeypatch.syspath_prepend(tmp_path)
    only_here = importlib.import_module("only_here")
    log = os.open(tmp_path / "fast-0.log", os.O_CREAT | os.O_WRONLY)
    kept = os.dup(2)
    try:
        os.dup2(log, 2)
        early.run(only_here.run, {})
        assert early.last_words(_DEADLINE) == "ModuleNotFoundError: No module named 'only_here'"
        early.process.join(_DEADLINE)
    finally:
        os.dup2(kept, 2)
        for descriptor in (log, kept):
            os.close(descriptor)
    assert "Traceback" in (tmp_path / "fast-0.log").read_text()


def say() -> None:
    os.write(1, b"output\n")
    os.write(2, b"error\n")


def test_one_that_was_begun_is_taken_once(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[str] = []

    def make(accelerator: str) -> int:
        made.append(accelerator)
        return len(made)

    monkeypatch.setattr(early_core, "EarlyCore", make)
    early_core.begin("nvidia")
    assert [early_core.take("nvidia") for _ in range(3)] == [1, 2, 3]
    assert made == ["nvidia"] * 3


def test_one_that_nobody_asked_for_ends(early: EarlyCore) -> None:
    early.close()
    assert early.process.exitcode is not None
    early.close()


def test_one_whose_host_lets_go_ends_by_itself(early: EarlyCore) -> None:
    early._orders.close()
    early.process.join(_DEADLINE)
    assert early.process.exitcode == 0


def test_only_whom_it_is_offered_to_is_given_it(early: EarlyCore) -> None:
    offers = early_core._Offers(lambda: multiprocessing.get_context("spawn"))
    assert offers() is multiprocessing.get_context("spawn")
    token = early_core._OFFERED.set(early)
    try:
        assert isinstance(offers(), early_core._Context)
    finally:
        early_core._OFFERED.reset(token)
    early.close()
