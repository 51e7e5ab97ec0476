"""`rljob run` as a process of its own, for tests that watch it or kill parts of it."""

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import yaml

from rljob_runtime.trace.record.metrics_log import METRICS_FILE, read_metrics

PROMPTS = 4
"""Prompts of a step."""


def manifest(
    folder: Path, steps: int, pools: dict[str, Any] | None = None, **training: Any
) -> tuple[Path, dict[str, Any]]:
    """A job that takes seconds: torch engines, a tiny model, one pass over the data. Its file and content."""
    spec = {
        "accelerator": "cpu",
        "pools": pools or {"fastRollout": {"replicas": 1}, "heavyRollout": {"replicas": 1}},
        "training": {
            "model": {"random": {}},
            "tokenizer": {"characters": {}},
            "data": {"generated": {"task": "copy", "rows": steps * PROMPTS}, "maxPromptTokens": 8},
            "reward": {"function": "rljob_runtime.rewards.tasks:copy"},
            "rollout": {
                "engine": {"torch": {}},
                "samplesPerPrompt": 2,
                "maxResponseTokens": 32,
                "maxRunningRequests": 8,
            },
            "schedule": {"epochs": 1, "promptsPerBatch": PROMPTS},
            "checkpoint": {"everySteps": 3},
            **training,
        },
    }
    job = {"apiVersion": "rljob.dev/v1alpha1", "kind": "RLJob", "metadata": {"name": "faults"}, "spec": spec}
    path = folder / "job.yaml"
    path.write_text(yaml.safe_dump(job))
    return path, job


class Run:
    """An `rljob run` in a process of its own."""

    def __init__(self, file: Path, *options: str) -> None:
        self.folder = file.parent / "run"
        command = [sys.executable, "-m", "rljob_runtime.cli", "run", str(file), "--output", str(self.folder)]
        self.log = file.parent / "out.log"
        with self.log.open("a") as log:
            self.process = subprocess.Popen([*command, *options], stdout=log, stderr=subprocess.STDOUT)

    def trained(self) -> dict[int, list[int]]:
        """Prompts by step, as the run recorded them; later lines of a step supersede earlier ones."""
        return {row["step"]: row["uids"] for row in read_metrics(self.folder / METRICS_FILE).rows}

    def wait_for_step(self, step: int, seconds: float = 240) -> None:
        """Until `step` steps are recorded."""
        self.wait(lambda: len(self.trained()) >= step, f"step {step}", seconds)

    def wait(self, condition: Callable[[], bool], what: str, seconds: float = 240) -> None:
        deadline = time.monotonic() + seconds
        while not condition():
            assert self.process.poll() is None, (
                f"ended with {self.process.returncode}: {self.log.read_text()}"
            )
            assert time.monotonic() < deadline, f"no {what} in {seconds} s: {self.log.read_text()}"
            time.sleep(0.05)

    def actor(self, name: str) -> psutil.Process:
        """A living actor process of this run."""
        # Ray's title of a process, "ray::Actor.method", is in its command line too: the name may be cut.
        found = [
            process
            for process in psutil.Process(self.process.pid).children(recursive=True)
            if process.name().startswith(f"ray::{name}") or f"ray::{name}" in " ".join(process.cmdline()[:1])
        ]
        assert found, f"no {name}"
        return found[0]

    def end(self, seconds: float = 240) -> int:
        return self.process.wait(seconds)


@contextmanager
def running(file: Path, *options: str) -> Iterator[Run]:
    run = Run(file, *options)
    try:
        yield run
    finally:
        if run.process.poll() is None:
            run.process.kill()
            run.process.wait(30)
