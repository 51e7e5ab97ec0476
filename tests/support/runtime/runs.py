"""`rljob run` as a process of its own, for tests that watch it or kill parts of it."""

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil
import yaml

from rljob_runtime.trace.record.metrics_log import METRICS_FILE, read_metrics
from tests.support.runtime.hang_ups import hear_hang_ups
from tests.support.runtime.prepared import Prepared

PROMPTS = 4
"""Prompts of a step."""
ONE_ENGINE = {"fastRollout": {"replicas": 1}}
"""The pools of a job whose test asks nothing of the heavy pool: one process less to start."""
HOLD = "hold-at"
"""A file beside the manifest: the number of steps from which on a `held` job gets no rewards."""
HELD_REWARD = f"""
import time
from pathlib import Path
from rljob_runtime.rewards.tasks import copy
from rljob_runtime.trace.record.metrics_log import read_metrics

HERE = Path(__file__).parent
METRICS = HERE / "run" / {METRICS_FILE!r}

def held(sample):
    while len(read_metrics(METRICS).rows) >= int((HERE / {HOLD!r}).read_text()):
        time.sleep(0.02)
    return copy(sample)
"""


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


def held(folder: Path, step: int) -> dict[str, Any]:
    """What to give `manifest` so that a job comes to `step` steps and not to its end before the test lets it
    (`Run.let`): from then on rewards wait, so that only groups which have theirs are trained, of as many
    further steps as `maxStaleness` allows and one."""
    (folder / "held_reward.py").write_text(HELD_REWARD)
    hold(folder, step)
    return {"reward": {"function": "held_reward:held", "timeoutSeconds": 600}}


def hold(folder: Path, step: int) -> None:
    # Replaced as a whole: the reward reads it at any moment.
    (new := folder / f"{HOLD}.new").write_text(str(step))
    new.replace(folder / HOLD)


def processes(root: int, title: str) -> list[psutil.Process]:
    """The living descendants of a process that are Ray actors, or other processes, of this title."""
    found = []
    for process in psutil.Process(root).children(recursive=True):
        # One that ends at this moment has no title any more.
        with suppress(psutil.NoSuchProcess):
            # The name may be cut; the command line is not.
            if title in " ".join([process.name(), *process.cmdline()]):
                found.append(process)
    return found


class Run:
    """An `rljob run` in a process of its own. Processes of jobs with vLLM start as a user's do; those of
    others have imported their packages then."""

    def __init__(self, file: Path, *options: str) -> None:
        self.folder = file.parent / "run"
        arguments = ["run", str(file), "--output", str(self.folder), *options]
        self.log = file.parent / "out.log"
        with self.log.open("a") as log:
            if _has_vllm(yaml.safe_load(file.read_text())):
                command = [sys.executable, "-m", "rljob_runtime.cli", *arguments]
                self.process: subprocess.Popen[bytes] | Prepared = subprocess.Popen(
                    command, stdout=log, stderr=subprocess.STDOUT, process_group=0,
                    preexec_fn=hear_hang_ups,
                )  # fmt: skip
            else:
                self.process = Prepared("rljob_runtime.cli", arguments, log)

    def trained(self) -> dict[int, list[int]]:
        """Prompts by step, as the run recorded them; later lines of a step supersede earlier ones."""
        return {row["step"]: row["uids"] for row in read_metrics(self.folder / METRICS_FILE).rows}

    def wait_for_step(self, step: int, seconds: float = 240) -> None:
        """Until `step` steps are recorded."""
        self.wait(lambda: len(self.trained()) >= step, f"step {step}", seconds)

    def wait(self, condition: Callable[[], bool], what: str, seconds: float = 240) -> None:
        deadline = time.monotonic() + seconds
        while True:
            # Looked at first: what the run did before its end counts, also where the end comes meanwhile.
            code = self.process.poll()
            if condition():
                return
            assert code is None, f"ended with {code} before {what}: {self.log.read_text()}"
            assert time.monotonic() < deadline, f"no {what} in {seconds} s: {self.log.read_text()}"
            time.sleep(0.05)

    def let(self, step: int | None = None) -> None:
        """Let a job that is `held` go on to `step` steps, or to its end."""
        hold(self.folder.parent, 2**31 if step is None else step)

    def actor(self, name: str) -> psutil.Process:
        """A living actor process of this run."""
        # Ray's title of a process: "ray::Actor.method".
        found = processes(self.process.pid, f"ray::{name}")
        assert found, f"no {name}"
        return found[0]

    def end(self, seconds: float = 240) -> int:
        return self.process.wait(seconds)


def _has_vllm(job: dict[str, Any]) -> bool:
    rollout = job["spec"]["training"].get("rollout", {})
    return "vllm" in rollout.get("engine", {"vllm": {}})  # it is the default


@contextmanager
def running(file: Path, *options: str) -> Iterator[Run]:
    run = Run(file, *options)
    try:
        yield run
    finally:
        if run.process.poll() is None:
            run.process.kill()
            run.process.wait(30)
