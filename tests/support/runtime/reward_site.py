"""Pools of reward workers, and functions that do what a response says: fail, hang, or end their process."""

import os
import select
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np

from rljob_runtime.rewards import RewardInput
from rljob_runtime.rewards.calls import FunctionCall
from rljob_runtime.rewards.pool import RewardPool

FUNCTIONS = '''
import contextlib, ctypes, os, pathlib, stat, subprocess, sys, time

def pid(sample):
    return os.getpid()

def length(sample):
    """Does what the response begins with; else gives its number of tokens."""
    with open(sample.answer, "a") as file:
        file.write(sample.prompt + "\\n")
    what = sample.response
    if what == "raise":
        raise ValueError("two\\nlines")
    if what == "hang":
        while True:
            pass
    if what == "exit":
        os._exit(3)
    if what == "sys.exit":
        sys.exit(4)
    if what == "crash":
        ctypes.string_at(0)
    if what == "nan":
        return float("nan")
    if what == "text":
        return "high"
    if what == "none":
        return None
    if what == "huge":
        return 10**400
    if what == "garbage":
        for descriptor in map(int, os.listdir("/proc/self/fd")):
            with contextlib.suppress(OSError):  # the descriptor of the listing itself is closed by now
                if stat.S_ISSOCK(os.fstat(descriptor).st_mode):
                    os.write(descriptor, bytes([4, 0, 0, 0]) + b"evil")
    if what == "print much":
        for number in range(100_000):
            print("line", number)
    if what == "print":
        print("from the reward")
    if what == "bool":
        return True
    if what == "parts":
        parts = {"tokens": len(sample.response_tokens)}
        return {"parts": parts, "metrics": {"level": sample.fields.get("level")}}
    return len(sample.response_tokens)

def slow(sample, seconds):
    time.sleep(seconds)
    return 1.0

calls = 0

def meet(sample, workers):
    """Waits until all workers have been called as often as this one."""
    global calls
    calls += 1
    folder = pathlib.Path(__file__).parent
    (folder / f"call-{calls}-{os.getpid()}").touch()
    while len(list(folder.glob(f"call-{calls}-*"))) < workers:
        time.sleep(0.01)
    return 1.0

def with_child(sample, how="child"):
    """Notes the process that it starts, and waits: for a child, one with a session of its own, or one whose
    parent ends at once."""
    if how == "orphan":
        shell = subprocess.run(
            ["sh", "-c", "sleep 600 > /dev/null & echo $!"], stdout=subprocess.PIPE, start_new_session=True
        )
        number = int(shell.stdout)
    else:
        number = subprocess.Popen(["sleep", "600"], start_new_session=how == "session").pid
    with open(sample.answer, "w") as file:
        file.write(str(number))
    if sample.response == "exit":
        os._exit(3)
    time.sleep(600)
'''


def sample(response: str = "", prompt: str = "", tokens: int = 3, answer: str = "/dev/null") -> RewardInput:
    return RewardInput(
        prompt=prompt,
        response=response,
        answer=answer,
        prompt_tokens=np.zeros(2, np.int32),
        response_tokens=np.zeros(tokens, np.int32),
        finished=True,
    )


@asynccontextmanager
async def running(folder: Path, function: str = "judge:length", **options: Any) -> AsyncIterator[RewardPool]:
    """A started pool that leaves no process behind and whose counters sum."""
    options = {"timeout_seconds": 60.0, "log": folder / "log", **options}
    pool = RewardPool([FunctionCall(function, options.pop("arguments", {}))], search_path=[folder], **options)
    before = children()
    await pool.start()
    try:
        yield pool
    finally:
        await pool.close()
    assert pool.counters.pending == 0
    assert children() <= before


def children() -> set[int]:
    """Processes that this one started and that run."""
    listed = subprocess.run(
        ["ps", "-o", "pid=,comm=", "--ppid", str(os.getpid())], capture_output=True, text=True
    )
    return {int(line.split()[0]) for line in listed.stdout.splitlines() if line.split()[1] != "ps"}


def wait_gone(pid: int, seconds: float = 60.0) -> bool:
    """Whether the process ends within that time."""
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        return bool(select.select([descriptor], [], [], seconds)[0])
    finally:
        os.close(descriptor)
