"""verl as a contender: its own command line with our settings, and its steps as its console tells of them.

A run ends by itself or at its deadline, and no process of it stays.
"""

import argparse
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from queue import Empty, Queue
from threading import Thread
from typing import Protocol

from transformers.utils import is_flash_attn_2_available

from tests.bench.peers.rates import Ended, verl_step
from tests.bench.peers.work import SAMPLES, Work

HERE = Path(__file__).parent
MODULES = {
    "verl_sync": "verl.trainer.main_ppo",
    "verl_async": "verl.experimental.fully_async_policy.fully_async_main",
}
"""What runs in each mode. Its settings are the file of that name in this folder, `*.yaml`, unless another one
is named."""
_ENDING = 15.0
"""Seconds for Ray and the engines to end after SIGTERM."""


@dataclass(frozen=True)
class Settings:
    """What differs from run to run."""

    mode: str
    """A key of MODULES."""
    gpus: int
    micro_batch: int
    """Tokens of a forward pass."""
    attention: str
    """As transformers calls it."""
    staleness: float = 1.0
    """verl's staleness_threshold, in the fully asynchronous mode."""


_NAME = re.compile(r"(verl_sync|verl_async)(?:-(\d+(?:\.\d+)?))?")


def named(name: str) -> tuple[str, float] | None:
    """Mode and staleness threshold of the contender of this name, `verl_sync` or `verl_async[-THRESHOLD]`;
    None for somebody else's. The threshold is 1 where none is named."""
    found = _NAME.fullmatch(name)
    if found is None or (found[1] == "verl_sync" and found[2]):
        return None
    return found[1], float(found[2] or 1.0)


def check_attention(parser: argparse.ArgumentParser, attention: str) -> None:
    """End the command where verl's attention is not installed, and say what to do."""
    if attention == "flash_attention_2" and not is_flash_attn_2_available():
        parser.error(
            "--attention flash_attention_2: transformers finds no flash-attn; install it, or say sdpa"
        )


class Amount(Protocol):
    """Of what is trained."""

    @property
    def prompts(self) -> int:
        """Of a step."""
        ...

    @property
    def steps(self) -> int: ...

    @property
    def longest(self) -> int:
        """At most so many tokens are a response."""
        ...


def command(mode: str, settings: str) -> list[str]:
    """What is run in a mode, with the settings of this name."""
    chosen = ["--config-dir", str(HERE), "--config-name", settings]
    return [sys.executable, "-m", MODULES[mode], *chosen]


def environment(settings: Settings, work: Amount, folder: Path) -> dict[str, str]:
    """What the settings' files refer to, and what keeps verl and Ray from asking the network."""
    trainers = max(1, settings.gpus // 2)
    given = {
        "WORK": folder, "HERE": HERE, "LONGEST": work.longest, "PROMPTS": work.prompts, "STEPS": work.steps,
        # Its console tells of no tokens in the first step of the fully asynchronous mode.
        "GROUPS": work.prompts * (work.steps + 1), "MICRO_BATCH": settings.micro_batch,
        "ATTENTION": settings.attention,
        "GPUS": max(1, settings.gpus), "TRAINERS": trainers, "ENGINES": max(1, settings.gpus - trainers),
        "STALENESS": settings.staleness, "CPUS": max(32, os.cpu_count() or 1),
    }  # fmt: skip
    return {
        **variables(given),
        "HF_HUB_OFFLINE": "1",
        "HYDRA_FULL_ERROR": "1",
        "PYTHONUNBUFFERED": "1",
        "RAY_DEDUP_LOGS": "0",
        "RAY_USAGE_STATS_ENABLED": "0",
        "TOKENIZERS_PARALLELISM": "true",
        "VLLM_NO_USAGE_STATS": "1",
    }


def variables(given: Mapping[str, object]) -> dict[str, str]:
    """By the names that the settings' files have for them."""
    return {f"PEERS_{name}": str(value) for name, value in given.items()}


def run(settings: Settings, work: Work, folder: Path, log: Path, seconds: float) -> list[Ended]:
    """The steps that ended within `seconds`. What verl says goes to `log`."""
    steps: list[Ended] = []
    told = environment(settings, work, folder)
    with closing(said(command(settings.mode, settings.mode), told, log, seconds)) as lines:
        for now, line in lines:
            ended = verl_step(line, now, work.prompts * SAMPLES)
            steps += [ended] if ended else []
            if len(steps) == work.steps:
                break
    return steps


def said(
    command: Sequence[str], told: Mapping[str, str], log: Path, seconds: float
) -> Generator[tuple[float, str]]:
    """What verl says within `seconds`, line by line, each with the seconds since it was started; to `log`
    too. Once this is closed no process of it is left. `told`: variables of its environment."""
    # Ray's workers import this package too.
    path = os.pathsep.join([str(HERE.parents[2]), *filter(None, [os.environ.get("PYTHONPATH")])])
    began = time.monotonic()
    child = subprocess.Popen(
        command, env={**os.environ, "PYTHONPATH": path, **told}, text=True, errors="replace",
        start_new_session=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    with log.open("w") as kept:
        try:
            for now, line in _lines(child, began + seconds):
                kept.write(f"{now - began:8.2f} {line}")
                yield now - began, line
        finally:
            _end(child)


def _lines(child: "subprocess.Popen[str]", deadline: float) -> Iterator[tuple[float, str]]:
    """When each line of the output came, and the line; until the output ends, or the deadline."""
    lines: Queue[tuple[float, str] | None] = Queue()

    def read() -> None:
        assert child.stdout is not None
        for line in child.stdout:
            lines.put((time.monotonic(), line))
        lines.put(None)

    # A thread, because Ray's daemons may hold the pipe's other end for longer than anyone waits.
    Thread(target=read, daemon=True).start()
    while (left := deadline - time.monotonic()) > 0:
        try:
            came = lines.get(timeout=left)
        except Empty:
            return
        if came is None:
            return
        yield came


def _end(child: "subprocess.Popen[str]") -> None:
    """End the group of processes: asked first, then killed."""
    for sent in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(child.pid, sent)
            child.wait(_ENDING)
        except subprocess.TimeoutExpired:
            print(f"verl: process {child.pid} has not ended {_ENDING:g} s after {sent.name}", flush=True)
        except ProcessLookupError:
            # Nobody of the group is left.
            return
