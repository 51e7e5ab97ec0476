"""A real run loses its processes one after the other: no prompt is lost, none is trained twice."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import psutil
import pytest
import yaml

STEPS, PROMPTS = 24, 4


def manifest(folder: Path, steps: int = STEPS, **training) -> Path:
    """A job that takes seconds: torch engines, a tiny model, one pass over the data."""
    spec = {
        "accelerator": "cpu",
        "pools": {"fastRollout": {"replicas": 1}, "heavyRollout": {"replicas": 1}},
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
    return path


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
        steps: dict[int, list[int]] = {}
        path = self.folder / "metrics.jsonl"
        for line in path.read_bytes().splitlines() if path.exists() else []:
            row = msgspec.json.decode(line)
            if "resumed" in row:
                steps = {step: uids for step, uids in steps.items() if step < row["resumed"]}
            else:
                steps[row["step"]] = row["uids"]
        return steps

    def wait_for_step(self, step: int, seconds: float = 120) -> None:
        """Until `step` steps are recorded."""
        self.wait(lambda: len(self.trained()) >= step, f"step {step}", seconds)

    def wait(self, condition: Callable[[], bool], what: str, seconds: float = 120) -> None:
        deadline = time.monotonic() + seconds
        while not condition():
            assert self.process.poll() is None, f"ended with {self.process.returncode}: {self.log.read_text()}"
            assert time.monotonic() < deadline, f"no {what} in {seconds} s: {self.log.read_text()}"
            time.sleep(0.05)

    def actor(self, name: str) -> psutil.Process:
        """A living actor process of this run."""
        found = [
            process
            for process in psutil.Process(self.process.pid).children(recursive=True)
            if process.name().startswith(f"ray::{name}") or f"ray::{name}" in " ".join(process.cmdline()[:1])
        ]
        assert found, f"no {name}"
        return found[0]

    def end(self, seconds: float = 120) -> int:
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


def assert_every_prompt_once(run: Run, steps: int = STEPS) -> None:
    trained = run.trained()
    assert sorted(trained) == list(range(steps))
    assert sorted(uid for uids in trained.values() for uid in uids) == list(range(steps * PROMPTS))


@pytest.mark.timeout(300)
def test_lost_processes_cost_no_prompt(tmp_path):
    with running(manifest(tmp_path)) as run:
        run.wait_for_step(2)
        for step, name in ((4, "RolloutWorker"), (8, "QueueHost"), (12, "TrainerActor"), (16, "RolloutWorker")):
            run.wait_for_step(step)
            os.kill(run.actor(name).pid, signal.SIGKILL)
        assert run.end() == 0, run.log.read_text()
        assert_every_prompt_once(run)
        text = run.log.read_text()
        assert "a replacement starts" in text
        assert "the queue host was lost and is back" in text
        assert "the trainer goes on from step" in text


@pytest.mark.timeout(600)
@pytest.mark.parametrize("delay", [0.0, 0.3, 0.9])
def test_killed_as_a_whole_it_goes_on_where_it_was(tmp_path, delay):
    file = manifest(tmp_path, steps=12)
    with running(file) as run:
        run.wait_for_step(5)
        time.sleep(delay)
        run.process.kill()
        run.end()
    with running(file, "--resume") as run:
        run.wait_for_step(9)
        time.sleep(delay)
        run.process.kill()
        run.end()
    with running(file, "--resume") as run:
        assert run.end() == 0, run.log.read_text()
        assert_every_prompt_once(run, steps=12)


@pytest.mark.timeout(300)
def test_ctrl_c_stops_with_a_checkpoint_and_resume_goes_on(tmp_path):
    file = manifest(tmp_path, steps=12)
    with running(file) as run:
        run.wait_for_step(4)
        run.process.send_signal(signal.SIGINT)
        assert run.end() == 130, run.log.read_text()
        assert "--resume" in run.log.read_text()
        done = len(run.trained())
        assert (run.folder / "checkpoints" / "latest").read_text().strip() == f"step_{done}"
    with running(file, "--resume") as run:
        assert run.end() == 0, run.log.read_text()
        assert_every_prompt_once(run, steps=12)
