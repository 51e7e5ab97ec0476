"""Reward against samples and against time on a task that is learned: ours and verl with the same model
folder, the same prompts in the same order, the same loss and the same optimizer.

    python -m tests.bench.peers.learning --gpus 1 --out OUT
    python -m tests.bench.peers.learning --gpus 1 --contenders ours-1 ours-0 verl_sync --seeds 2 --out OUT
    python -m tests.bench.peers.learning --gpus 0 --contenders ours-1 --out OUT      on a CPU
    python -m tests.bench.peers.learning --gpus 1 --kept A/curves.json B/curves.json --out OUT
                                                       figures of runs on several GPUs of a machine

The task is to repeat four letters (`copy_task.py`). Each step trains once on the same number of responses,
for all: GRPO divided by the standard deviation, clipped ratios against the engine's log-probabilities (verl's
bypass mode), the mean over tokens, neither an entropy bonus nor a KL penalty, AdamW at a constant rate. They
draw at temperature 1 from all tokens; a response ends at its end token, which is trained too, or at the
limit. On GPUs engines and forward passes compute in bfloat16 and the optimizer in float32, both contenders';
on a CPU ours computes in float32. What differs: the kernels; under which casts they run, which is FSDP's
mixed precision with autocast in verl; that ours at bound 1 trains on responses of the version before; and
what each draws.

Figures are the samples and the seconds to a reward of 0.5 and of 0.9 (the mean of five steps), the reward at
the end, and the largest distance between two curves after as many samples. Its baseline is the same distance
between seeds of ours (`--seeds 2`): that is noise. A contender that has no time left, or fails, is named and
left out; the others' figures are written all the same, each as soon as it is there. OUT/curves.json has each
step, OUT/NAME.log what verl said.

What must be installed for verl, and how GPUs are shared, is said in `__main__.py`.
"""

import argparse
import dataclasses
import json
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import torch

from tests.bench.figures import record
from tests.bench.peers import ours, peer, verl
from tests.bench.peers.copy_task import COPY, Task, prepare
from tests.bench.peers.curves import Point, verl_point
from tests.bench.peers.learning_figures import Run, figures, table

Told = Callable[[list[Point]], None]

VERL = "verl_sync"
_SETTINGS = "verl_learning"
_LEAST = 120.0
"""Seconds: nobody begins with less on a GPU."""
_MICRO_BATCH = 32768
"""Tokens: all of a step."""


def main() -> None:
    options = parse()
    peer.offer_kernels()
    until = time.monotonic() + options.seconds
    options.out.mkdir(parents=True, exist_ok=True)
    task = dataclasses.replace(COPY, steps=options.steps)
    if options.kept:
        curves = kept(options.kept)
        keep(curves, task, options)
    else:
        curves = run_all(task, until, options)
    print(table(curves, task.prompts * task.samples), flush=True)


def run_all(task: Task, until: float, options: argparse.Namespace) -> dict[Run, list[Point]]:
    """The curves of all contenders, one after the other, until then by time.monotonic."""
    curves: dict[Run, list[Point]] = {}
    wanted = runs(options.contenders, options.seeds)
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        prepare(task, folder)
        for number, run in enumerate(wanted):
            # Each may have an equal part of what is left, so that the last one is not starved.
            left = until - time.monotonic()
            share = left / (len(wanted) - number)
            if options.gpus and share < _LEAST:
                print(f"{run}: not run, {share:.0f} s were left", flush=True)
                continue

            def told(points: list[Point], run: Run = run) -> None:
                curves[run] = points
                keep(curves, task, options)

            points = contend(run, task, folder, share, options, told)
            left_out = "" if points else ", so that it is left out"
            print(f"{run}: {len(points)} of {task.steps} steps{left_out}", flush=True)
    return curves


def runs(contenders: Sequence[str], seeds: int) -> list[Run]:
    """Who runs, one after the other: ours with each seed, verl once."""
    return [
        Run(name, seed)
        for name in contenders
        for seed in (range(seeds) if ours.named(name) is not None else range(1))
    ]


def contend(
    run: Run, task: Task, folder: Path, seconds: float, options: argparse.Namespace, told: Told
) -> list[Point]:
    """The steps of one run; none where it fails. `told`: of those that there are so far."""
    name = str(run).replace(" ", "-")
    if (mine := ours.named(run.name)) is None:
        settings = peer.Settings(VERL, options.gpus, _MICRO_BATCH, options.attention)
        given = {**verl.environment(settings, task, folder), **variables(task)}
        return run_verl(given, task, options.out / f"{name}.log", seconds, told)
    place = options.out / name
    place.mkdir()
    began = time.time()
    try:
        rows = ours.rows(manifest(mine, task, folder, options.gpus, run.seed), place, seconds)
    except subprocess.SubprocessError as error:
        print(f"{run}: {error}", flush=True)
        return []
    points = [Point(row["time"] - began, row["reward_mean"]) for row in rows]
    if points:
        told(points)
    return points


def run_verl(given: Mapping[str, str], task: Task, log: Path, seconds: float, told: Told) -> list[Point]:
    """The steps of verl that ended within `seconds`; `given`: what its settings refer to. Each is told at
    once: its steps take long, and who lends the GPU may not wait for the last one."""
    points: list[Point] = []
    with closing(peer.said(verl.command(VERL, _SETTINGS), given, log, seconds)) as lines:
        for now, line in lines:
            point = verl_point(line, now)
            if point is None:
                continue
            points.append(point)
            told(points)
            if len(points) == task.steps:
                break
    return points


def variables(task: Task) -> dict[str, str]:
    """What `verl_learning.yaml` refers to, beside what all settings do."""
    low, high = task.clip
    return peer.variables(
        {
            "LEARNING_RATE": task.learning_rate, "BETA2": task.beta2, "CLIP_LOW": low, "CLIP_HIGH": high,
            "SAMPLES": task.samples,
        }
    )  # fmt: skip


def manifest(mine: ours.Ours, task: Task, folder: Path, gpus: int, seed: int) -> dict[str, Any]:
    """Our RLJob of the task. The model and the prompts are the same with every seed."""
    low, high = task.clip
    training = {
        "seed": seed,
        "data": {"maxPromptTokens": 16},
        "reward": {"function": "tests.bench.peers.copy_reward:ours"},
        "rollout": {
            "samplesPerPrompt": task.samples, "maxResponseTokens": task.longest, "maxRunningRequests": 512,
            "temperature": 1.0, "topP": 1.0,
        },
        "algorithm": {
            "advantage": {"grpo": {}},
            "policyLoss": {"clip": {"low": low, "high": high, "dual": 3.0}},
            "aggregation": "token-mean",
        },
        "optimizer": {
            "learningRate": task.learning_rate, "beta1": 0.9, "beta2": task.beta2, "weightDecay": 0.01,
            "maxGradNorm": 1.0,
        },
        "schedule": {"totalSteps": task.steps, "promptsPerBatch": task.prompts},
        "parallel": {"maxTokensPerMicroBatch": _MICRO_BATCH},
    }  # fmt: skip
    return ours.placed(mine, folder, gpus, training)


def keep(curves: Mapping[Run, Sequence[Point]], task: Task, options: argparse.Namespace) -> None:
    """Write the curves and the figures of what is there so far."""
    points = {str(run): [dataclasses.asdict(point) for point in found] for run, found in curves.items()}
    (options.out / "curves.json").write_text(json.dumps(points) + "\n")
    found = figures(curves, task.prompts * task.samples, options.gpus)
    record(f"peers_learning_{options.gpus}", found, options.out, show=False)


def kept(files: Sequence[Path]) -> dict[Run, list[Point]]:
    """The curves that runs have written; of a contender in several of them, the last file's."""
    curves: dict[Run, list[Point]] = {}
    for file in files:
        for name, points in json.loads(file.read_text()).items():
            contender, _, seed = name.partition(" seed ")
            curves[Run(contender, int(seed or 0))] = [Point(**point) for point in points]
    return curves


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--gpus", type=int, default=torch.cuda.device_count(), help="0: a CPU, for ours alone"
    )
    parser.add_argument(
        "--contenders", nargs="+", default=["ours-1", VERL], metavar="NAME",
        help=f"ours-BOUND[xENGINES][-shared], {VERL}; in this order",
    )  # fmt: skip
    parser.add_argument("--seconds", type=float, default=560, help="of all contenders together")
    parser.add_argument("--seeds", type=int, default=1, help="with how many seeds each of ours is run")
    parser.add_argument("--steps", type=int, default=COPY.steps, help="of each contender")
    parser.add_argument("--attention", default="flash_attention_2", help="verl's")
    parser.add_argument("--kept", nargs="+", type=Path, metavar="FILE", help="runs nothing: curves of runs")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    if options.seeds < 1 or options.steps < 1:
        parser.error("--seeds and --steps must be 1 or more")
    for name in options.contenders:
        if name != VERL and ours.named(name) is None:
            parser.error(f"--contenders: {name!r}; known: ours-BOUND[xENGINES][-shared], {VERL}")
    if VERL in options.contenders and not options.kept:
        if not options.gpus:
            parser.error(f"--contenders: {VERL} needs a GPU")
        peer.check_attention(parser, options.attention)
    return options


if __name__ == "__main__":
    main()
