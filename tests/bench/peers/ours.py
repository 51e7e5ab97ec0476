"""Our contender: a job of the work, run as a user runs one."""

import re
import subprocess
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rljob_runtime.routing.gears import sizes_up_to
from rljob_runtime.trace.record.metrics_log import read_metrics
from tests.bench.peers.rates import Ended
from tests.bench.peers.work import LENGTHS, MODEL, PROMPTS, SAMPLES, Work
from tests.bench.real_runs import RUN, run_job

_NAME = re.compile(r"ours-(\d+)(?:x([1-8]))?(-shared)?(-delayed)?(?:-graphs(\d+))?")


@dataclass(frozen=True)
class Ours:
    """What differs between our own contenders."""

    bound: int
    """`training.async.maxStaleness`."""
    engines: int = 1
    """vLLM engines on each GPU that generates."""
    shared: bool = False
    """Whether every GPU generates, and the trainer shares the first one with its engines."""
    delayed: bool = False
    """`engine.vllm.delayPrefills`."""
    graphs: int | None = None
    """The most tokens of a captured graph; None: as an engine captures them by itself."""


def named(name: str) -> Ours | None:
    """The contender of this name, `ours-BOUND[xENGINES][-shared][-delayed][-graphsTOKENS]`; None for somebody
    else's."""
    found = _NAME.fullmatch(name)
    if found is None:
        return None
    bound, engines, shared, delayed, graphs = found.groups()
    return Ours(
        int(bound),
        int(engines or 1),
        shared is not None,
        delayed is not None,
        None if graphs is None else int(graphs),
    )


def manifest(ours: Ours, work: Work, folder: Path, gpus: int, micro_batch: int) -> dict[str, Any]:
    """The RLJob of the work."""
    rollout = {
        "samplesPerPrompt": SAMPLES, "maxResponseTokens": work.longest,
        "forcedLengths": str(folder / LENGTHS), "maxRunningRequests": 512,
    }  # fmt: skip
    training = {
        "data": {"maxPromptTokens": 256},
        "reward": {"function": "tests.bench.peers.reward:ours"},
        "rollout": rollout,
        "optimizer": {"learningRate": 1e-6},
        "schedule": {"totalSteps": work.steps, "promptsPerBatch": work.prompts},
        "parallel": {"maxTokensPerMicroBatch": micro_batch},
    }
    return placed(ours, folder, gpus, training)


def placed(ours: Ours, folder: Path, gpus: int, training: Mapping[str, Any]) -> dict[str, Any]:
    """The RLJob of `training`, with what is the same in every job: the folder's model and prompts, in their
    order, and where it runs. `gpus`: 0 for a CPU; one is shared by trainer and engine, of more the first
    trains, and generates as well where `ours` says so."""
    shared = gpus < 2 or ours.shared
    vllm: dict[str, Any] = {"gpuMemoryUtilization": 0.35 if shared else 0.85}
    if ours.delayed:
        vllm["delayPrefills"] = True
    if ours.graphs is not None:
        vllm["captureSizes"] = list(sizes_up_to(ours.graphs))
    engine: Mapping[str, Any] = {"vllm": vllm} if gpus else {"torch": {}}
    # An accelerator has one member in a group of NCCL, however many engines it has.
    push: dict[str, Any] = {"push": {}, "transport": "auto" if shared or ours.engines > 1 else "nccl"}
    several = {"enginesPerAccelerator": ours.engines, "cpusPerWorker": ours.engines + 2}
    return {
        "apiVersion": "rljob.dev/v1alpha1",
        "kind": "RLJob",
        "metadata": {"name": "peers"},
        "spec": {
            "accelerator": "nvidia" if gpus else "cpu",
            "pools": {
                "fastRollout": {
                    "replicas": max(1, gpus if ours.shared else gpus - 1),
                    **(several if ours.engines > 1 else {}),
                }
            },
            "training": {
                **training,
                "model": {"path": str(folder / MODEL), **({"dtype": "bfloat16"} if gpus else {})},
                "data": {"jsonl": {"path": str(folder / PROMPTS)}, "shuffle": False, **training["data"]},
                "rollout": {"engine": dict(engine), **training["rollout"]},
                "async": {"maxStaleness": ours.bound, "weightSync": push},
                "checkpoint": {"everySteps": 1000},
            },
        },
    }  # fmt: skip


def run(job: Mapping[str, Any], folder: Path, seconds: float) -> list[Ended]:
    """The steps of the job that ended within `seconds`, as `rows` has them."""
    return [Ended(row["time"], row["response_tokens"]) for row in rows(job, folder, seconds)]


def rows(job: Mapping[str, Any], folder: Path, seconds: float) -> list[dict[str, Any]]:
    """The metrics of the job's steps that ended within `seconds`, run in a folder that is there.

    Raises subprocess.CalledProcessError where it fails.
    """
    shared = ["--share"] if job["spec"]["accelerator"] == "nvidia" else []
    with suppress(subprocess.TimeoutExpired):
        run_job(folder, job, seconds, *shared)
    written = folder / RUN / "metrics.jsonl"
    return read_metrics(written).rows if written.exists() else []
