"""TRL as a contender: its trainers with our settings, and its steps as what runs inside it (`trl_inside`)
tells of them."""

import json
import os
import sys
from dataclasses import dataclass
from pathlib import Path

from tests.bench.peers import peer
from tests.bench.peers.peer import HERE, Settings, variables
from tests.bench.peers.rates import Ended, trl_step
from tests.bench.peers.work import SAMPLES, Work

MODES = ("trl_sync",)
"""Its trainers. The settings of each are the file of that name in this folder, `*.yaml`."""
WANTED = "trl==1.16.0"
"""As pip takes it."""


@dataclass(frozen=True)
class Batch:
    """How the responses of a GPU in a step are split."""

    responses: int
    """Of a forward pass."""
    passes: int


def named(name: str) -> tuple[str, float] | None:
    """Mode and staleness of the contender of this name; None for somebody else's."""
    return (name, 0.0) if name in MODES else None


def batch(work: Work, gpus: int, micro_batch: int) -> Batch:
    """As many responses in a pass as `micro_batch` tokens hold, with the padding to the longest prompt and
    the longest response. `gpus`: 0 for a CPU.

    Raises ValueError where the prompts of a step cannot be shared equally: a group must not be split.
    """
    ranks = max(1, gpus)
    if work.prompts % ranks:
        raise ValueError(
            f"TRL gives each of {gpus} GPUs as many prompts, and {work.prompts} of a step cannot be shared so"
        )
    responses = work.prompts // ranks * SAMPLES
    widest = work.prompt_tokens[1] + work.longest
    fits = max(1, micro_batch // widest)
    each = max(number for number in range(1, min(fits, responses) + 1) if responses % number == 0)
    return Batch(each, responses // each)


def command(settings: Settings, work: Work, folder: Path) -> list[str]:
    """What is run: without a launcher on one device, so that no gradients are communicated."""
    inside = ["tests.bench.peers.trl_inside", *arguments(settings, work, folder)]
    module = ["tests.bench.peers.ranks", str(settings.gpus), *inside] if settings.gpus > 1 else inside
    return [sys.executable, "-m", *module]


def arguments(settings: Settings, work: Work, folder: Path) -> list[str]:
    """What depends on the work or on the machine, as TRL's command line takes it."""
    split = batch(work, settings.gpus, settings.micro_batch)
    # No CPU has flash-attn.
    attention = settings.attention if settings.gpus else "sdpa"
    given = {
        "config": HERE / f"{settings.mode}.yaml",
        "output_dir": folder / settings.mode,
        "model_init_kwargs": json.dumps({"attn_implementation": attention}),
        "max_steps": work.steps,
        "max_completion_length": work.longest,
        "per_device_train_batch_size": split.responses,
        "gradient_accumulation_steps": split.passes,
        "use_cpu": settings.gpus == 0,
    }
    return [word for name, value in given.items() for word in (f"--{name}", str(value))]


def environment(settings: Settings, folder: Path) -> dict[str, str]:
    """What `trl_inside` reads, which GPUs there are, and what keeps all from asking the network."""
    visible = devices(settings.gpus, os.environ.get("CUDA_VISIBLE_DEVICES"))
    return {**variables({"WORK": folder}), **peer.ALONE, "CUDA_VISIBLE_DEVICES": visible}


def devices(gpus: int, visible: str | None) -> str:
    """The first `gpus` of those that are visible now, as CUDA_VISIBLE_DEVICES has them; None for all."""
    names = visible.split(",") if visible is not None else map(str, range(gpus))
    return ",".join(list(names)[:gpus])


def run(settings: Settings, work: Work, folder: Path, log: Path, seconds: float) -> list[Ended]:
    """The steps that ended within `seconds`. What TRL says goes to `log`."""
    told = environment(settings, folder)
    return peer.run(command(settings, work, folder), told, log, seconds, work.steps, trl_step)
