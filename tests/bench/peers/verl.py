"""verl as a contender: its own command line with our settings, and its steps as its console tells of them."""

import os
import re
import sys
from functools import partial
from pathlib import Path
from typing import Protocol

from tests.bench.peers import peer
from tests.bench.peers.peer import HERE, Settings, variables
from tests.bench.peers.rates import Ended, verl_step
from tests.bench.peers.work import SAMPLES, Work

MODULES = {
    "verl_sync": "verl.trainer.main_ppo",
    "verl_async": "verl.experimental.fully_async_policy.fully_async_main",
}
"""What runs in each mode. Its settings are the file of that name in this folder, `*.yaml`, unless another one
is named."""
WANTED = "verl==0.9.1"
"""As pip takes it."""
_NAME = re.compile(r"(verl_sync|verl_async)(?:-(\d+(?:\.\d+)?))?")


def named(name: str) -> tuple[str, float] | None:
    """Mode and staleness threshold of the contender of this name, `verl_sync` or `verl_async[-THRESHOLD]`;
    None for somebody else's. The threshold is 1 where none is named."""
    found = _NAME.fullmatch(name)
    if found is None or (found[1] == "verl_sync" and found[2]):
        return None
    return found[1], float(found[2] or 1.0)


def check(settings: Settings, trl: str | None) -> None:
    """Raises ValueError, with what to do, where this cannot run. `trl`: the version of TRL that is
    installed."""
    if settings.mode == "verl_async" and settings.gpus < 2:
        raise ValueError("verl_async needs two GPUs")
    if trl is not None and int(trl.partition(".")[0]) >= 1:
        raise ValueError(
            f"{settings.mode} does not start beside trl {trl}: verl 0.9.1 imports from it what version 1 has "
            "no longer. Run TRL's contenders in a run of their own, with trl in a folder that "
            "PYTHONPATH names in that run alone"
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
        **peer.ALONE,
        "HYDRA_FULL_ERROR": "1",
        "RAY_DEDUP_LOGS": "0",
        "RAY_USAGE_STATS_ENABLED": "0",
    }


def run(settings: Settings, work: Work, folder: Path, log: Path, seconds: float) -> list[Ended]:
    """The steps that ended within `seconds`. What verl says goes to `log`."""
    read = partial(verl_step, samples=work.prompts * SAMPLES)
    told = environment(settings, work, folder)
    return peer.run(command(settings.mode, settings.mode), told, log, seconds, work.steps, read)
