"""`rljob run` for benchmarks: jobs run to their end. They are the copy example with a few changes, or train a
random model on the copy task."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from rljob_runtime.data.length_trace import FORMAT, LENGTHS_FILE
from rljob_runtime.simulate.workload import LengthModel, Lengths
from rljob_runtime.trace.record.event_log import EVENTS_FOLDER
from rljob_runtime.trace.record.metrics_log import METRICS_FILE, read_metrics
from rljob_runtime.trace.record.start_log import STARTS_FILE

EXAMPLE = Path(__file__).parents[2] / "examples" / "copy.yaml"
PLAIN: dict[str, Any] = {
    "algorithm": {"policyLoss": {"clip": {"low": 0.2, "high": 0.28}}, "entropyCoefficient": 0.02},
    "optimizer": {"learningRate": 1e-3, "beta2": 0.95},
}
"""For jobs that are the copy example with other steps: the learning rate is constant, so that a step does not
depend on how many there are."""
SAMPLES = 8
"""Responses to a prompt in the jobs of `copy_job`."""
LARGE: dict[str, Any] = {
    "hiddenSize": 1024, "intermediateSize": 3072, "layers": 16, "attentionHeads": 16, "keyValueHeads": 8,
    "headDim": 128, "maxPositionEmbeddings": 16384, "vocabularySize": 32768,
}  # fmt: skip
"""For GPUs: a random model of the 0.3 B class."""
SMALL: dict[str, Any] = {"maxPositionEmbeddings": 1024}
"""For CPUs: the smallest one."""
RUN = "run"
"""Name of a run's folder, in its job's."""
LENGTHS = "lengths.jsonl"
"""Name of the forced lengths, in a job's folder."""
SEED = 7
"""Of the lengths."""
KEPT = "RLJOB_BENCH_KEPT"
"""Environment variable that names a folder in which what runs record is kept, such as to fit costs anew."""
_RECORDED = ("job.yaml", "driver.log", METRICS_FILE, LENGTHS_FILE, STARTS_FILE, EVENTS_FOLDER)


def run_example(
    folder: Path, training: dict[str, Any], seconds: float = 1500, pools: Mapping[str, Any] | None = None
) -> list[dict[str, Any]]:
    """Run the copy example with `training` and `pools` merged over its own; the metrics of its steps."""
    folder.mkdir(parents=True)
    document = yaml.safe_load(EXAMPLE.read_text())
    document["spec"]["training"].update(training)
    document["spec"]["pools"].update(pools or {})
    return read_metrics(run_job(folder, document, seconds) / "metrics.jsonl").rows


def run_job(folder: Path, job: Mapping[str, Any], seconds: float, *options: str) -> Path:
    """Run a job with these options, from a folder that is there; the run's folder."""
    file, output = folder / "job.yaml", folder / RUN
    file.write_text(yaml.safe_dump(dict(job)))
    command = [sys.executable, "-m", "rljob_runtime.cli", "run", str(file), "--output", str(output)]
    try:
        subprocess.run([*command, *options], check=True, timeout=seconds)
    finally:
        if KEPT in os.environ:
            _keep(output, Path(os.environ[KEPT]) / folder.name)
    return output


def _keep(run: Path, folder: Path) -> None:
    """Copy what a run recorded: its own folder goes with the benchmark."""
    for name in _RECORDED:
        if (run / name).is_dir():
            shutil.copytree(run / name, folder / name, dirs_exist_ok=True)
        elif (run / name).exists():
            folder.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(run / name, folder / name)


def copy_job(
    name: str,
    gpus: bool,
    model: Mapping[str, Any],
    engine: Mapping[str, Any],
    rollout: Mapping[str, Any],
    training: Mapping[str, Any],
    pools: Mapping[str, int] | None = None,
) -> dict[str, Any]:
    """A job of a random model on the copy task. `engine`: of vLLM; `rollout` and `training`: what else is to
    be there; `pools`: their replicas."""
    return {
        "apiVersion": "rljob.dev/v1alpha1",
        "kind": "RLJob",
        "metadata": {"name": name},
        "spec": {
            "accelerator": "nvidia" if gpus else "cpu",
            "pools": {pool: {"replicas": replicas} for pool, replicas in (pools or {}).items()},
            "training": {
                "model": {"random": dict(model), **({"dtype": "bfloat16"} if gpus else {})},
                "tokenizer": {"characters": {}},
                "data": {
                    "generated": {"task": "copy", "minLength": 8, "maxLength": 64, "letters": 26},
                    "maxPromptTokens": 128,
                },
                "reward": {"function": "rljob_runtime.rewards.tasks:copy"},
                "rollout": {"engine": {"vllm": dict(engine)}, "samplesPerPrompt": SAMPLES, **rollout},
                "optimizer": {"learningRate": 1e-6},
                "checkpoint": {"everySteps": 1000},
                **training,
            },
        },
    }


def force_lengths(folder: Path, prompts: int, cap: int, mean: float) -> None:
    """Write forced lengths for so many prompts: lognormal, with a tail to the cap."""
    model = LengthModel(mean, cap, between=0.8, within=0.5, prompt_tokens=64)
    write_lengths(folder, model.draw(prompts, SAMPLES, SEED).lengths, cap)


def write_lengths(folder: Path, tokens: Lengths, cap: int) -> None:
    """Write these forced lengths: [prompts, samples]."""
    lines = [json.dumps({"format": FORMAT, "samples_per_prompt": SAMPLES, "max_response_tokens": cap})]
    for (uid, index), count in np.ndenumerate(tokens):
        lines.append(json.dumps({"uid": uid, "index": index, "response_tokens": int(count)}))
    (folder / LENGTHS).write_text("\n".join(lines) + "\n")
