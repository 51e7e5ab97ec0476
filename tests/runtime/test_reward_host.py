"""Reward workers that a host starts in place of the driver: the same ends, whoever dies first."""

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from rljob_api import RLJob
from rljob_runtime.manifest.checks import check_job
from rljob_runtime.own_functions import FunctionLoadError
from rljob_runtime.rewards import RewardInput
from rljob_runtime.rewards.calls import FunctionCall
from rljob_runtime.rewards.launch import HostAway, launch
from rljob_runtime.rewards.load import Refusal
from rljob_runtime.rewards.pool import RewardPool, RewardPoolError
from rljob_runtime.rewards.trial import hosted_refusal
from tests.support.jobs import job

FUNCTIONS = """
import os, subprocess, time

def does(sample, factor=1):
    if sample.response == "hang":
        child = subprocess.Popen(["sleep", "600"], start_new_session=True)
        print(child.pid, flush=True)
        child.wait()
    if sample.response == "exit":
        os._exit(3)
    if sample.response == "print":
        print("from the reward", flush=True)
    if sample.response == "starter":
        # Of its guard.
        with open(f"/proc/{os.getppid()}/stat") as stat:
            return int(stat.read().rsplit(")", 1)[1].split()[1])
    return factor
"""
WAIT_SECONDS = 30.0


@dataclass(frozen=True)
class Host:
    """A host that runs."""

    process: subprocess.Popen[str]
    path: Path

    def workers(self) -> list[psutil.Process]:
        """The workers that it has started and that run, each as its guard."""
        started: list[psutil.Process] = psutil.Process(self.process.pid).children()
        return started


@contextlib.contextmanager
def hosting(folder: Path) -> Iterator[Host]:
    path = folder / "host"
    command = [sys.executable, "-m", "rljob_runtime.cli", "host-rewards", "--socket", str(path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline().startswith("reward workers are started for")
            yield Host(process, path)
        finally:
            process.kill()


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Host]:
    with hosting(tmp_path_factory.mktemp("host")) as started:
        yield started


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "judge.py").write_text(FUNCTIONS)
    return tmp_path


@contextlib.asynccontextmanager
async def running(
    folder: Path, host: Host, function: str = "judge:does", **options: Any
) -> AsyncIterator[RewardPool]:
    options = {"timeout_seconds": 60.0, "log": folder / "log", "host": host.path, **options}
    pool = RewardPool([FunctionCall(function)], search_path=[folder], **options)
    await pool.start()
    try:
        yield pool
    finally:
        await pool.close()
    assert pool.counters.pending == 0


def sample(response: str = "") -> RewardInput:
    return RewardInput("", response, None, np.zeros(1, np.int32), np.zeros(1, np.int32), finished=True)


async def test_workers_are_started_by_the_host_and_print_into_the_drivers_log(
    folder: Path, host: Host
) -> None:
    async with running(folder, host, workers=2) as pool:
        starter, _ = await pool.score([sample("starter"), sample("print")])
        assert starter.value == host.process.pid
        workers = host.workers()
        assert len(workers) == 2
    assert "from the reward" in (folder / "log").read_text()
    gone, alive = psutil.wait_procs(workers, WAIT_SECONDS)
    assert len(gone) == 2 and not alive


async def test_a_sample_that_takes_too_long_or_kills_its_worker_costs_itself(
    folder: Path, host: Host
) -> None:
    async with running(folder, host, timeout_seconds=4.0) as pool:
        scores = await pool.score([sample("hang"), sample(), sample("exit"), sample()])
        failures = [score.failure for score in scores]
        assert failures == ["timeout after 4 s", None, "reward worker died (exit code 3)", None]
        assert pool.counters.worker_restarts == 2
    # The process that the function had started is gone with its worker.
    [started] = [int(line) for line in (folder / "log").read_text().split()]
    deadline = time.monotonic() + WAIT_SECONDS
    with contextlib.suppress(psutil.NoSuchProcess):
        while psutil.Process(started).status() != psutil.STATUS_ZOMBIE:
            assert time.monotonic() < deadline, f"{started} runs on"
            await asyncio.sleep(0.05)


async def test_without_its_host_a_pool_says_where_to_look(folder: Path) -> None:
    with hosting(folder) as lost:
        async with running(folder, lost) as pool:
            lost.process.kill()
            lost.process.wait()
            message = r"no host of reward workers answers at .* container `rewards`"
            with pytest.raises(RewardPoolError, match=message):
                # The kernel kills the worker a moment later, which may answer until then.
                while True:
                    await pool.score([sample()])


async def test_a_function_that_cannot_be_used_is_refused(folder: Path, host: Host) -> None:
    with pytest.raises(FunctionLoadError, match=r"Did you mean does\?"):
        async with running(folder, host, function="judge:dose"):
            pass


@pytest.mark.parametrize(
    ("calls", "expected"),
    [
        ([FunctionCall("judge:does", {"factor": 2})], None),
        ([FunctionCall("judge:does"), FunctionCall("judje:does")], (1, False, None, "no module judje")),
        ([FunctionCall("judge:does", {"faktor": 2})], (0, True, "faktor", "Did you mean factor?")),
    ],
)
def test_what_is_refused_is_known_without_importing_it_here(
    folder: Path, host: Host, calls: list[FunctionCall], expected: Any
) -> None:
    found = hosted_refusal(calls, [folder], host.path)
    assert "judge" not in sys.modules
    if expected is None:
        assert found is None
    else:
        assert isinstance(found, Refusal)
        assert (found.call, found.of_arguments, found.argument) == expected[:3]
        assert expected[3] in found.message


def test_each_function_that_cannot_be_used_is_told(folder: Path, host: Host) -> None:
    functions = [
        {"name": "a", "function": "judje:does"},
        {"name": "b", "function": "judge:does"},
        {"name": "c", "function": "judge:does", "arguments": {"faktor": 2}},
    ]
    document = job({"training.reward": {"functions": functions}})
    errors, _ = check_job(RLJob.model_validate(document), folder, host.path)
    assert [str(each).split(": ")[0].removeprefix("spec.training.reward.functions") for each in errors] == [
        "[0].function",
        "[2].arguments.faktor",
    ]


async def test_what_is_no_request_costs_a_host_nothing(folder: Path, host: Host) -> None:
    for text in (b"", b"no JSON\n", b'"a word"\n', b"[]\n", b"[1" * 9):
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(WAIT_SECONDS)
            connection.connect(str(host.path))
            connection.sendall(text)
            connection.shutdown(socket.SHUT_WR)
            assert connection.recv(64) == b"", text
    async with running(folder, host) as pool:
        assert [score.value for score in await pool.score([sample()])] == [1.0]


DRIVER = """
import asyncio, sys
from pathlib import Path
from rljob_runtime.rewards.calls import FunctionCall
from rljob_runtime.rewards.pool import RewardPool

async def main(folder, host):
    pool = RewardPool([FunctionCall("judge:does")], search_path=[folder], host=host)
    await pool.start()
    print("started", flush=True)
    await asyncio.Event().wait()

asyncio.run(main(*map(Path, sys.argv[1:])))
"""


def test_a_worker_ends_with_a_driver_that_is_killed(folder: Path, host: Host) -> None:
    command = [sys.executable, "-c", DRIVER, str(folder), str(host.path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as driver:
        assert driver.stdout is not None
        assert driver.stdout.readline() == "started\n"
        [worker] = host.workers()
        driver.kill()
    gone, _ = psutil.wait_procs([worker], WAIT_SECONDS)
    assert gone == [worker]


async def test_a_worker_that_is_killed_before_it_has_begun_has_an_end(folder: Path, host: Host) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        launched = await launch(theirs.fileno(), None, host.path)
        launched.kill()
        assert await launched.wait() == -signal.SIGTERM
        assert await launched.wait() == -signal.SIGTERM


async def test_a_socket_of_a_host_that_has_ended_is_told_at_once(folder: Path) -> None:
    with socket.socket(socket.AF_UNIX) as ended:
        ended.bind(str(folder / "host"))
    with pytest.raises(HostAway, match="Connection refused"):
        await launch(0, None, folder / "host")
    assert os.fstat(0)  # what was to be given away is still open
