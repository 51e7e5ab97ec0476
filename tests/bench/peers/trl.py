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

MODULES = {
    "trl_sync": "tests.bench.peers.trl_inside",
    "trl_async": "tests.bench.peers.trl_async_inside",
}
"""What runs each of its trainers, whose settings are the file of that name in this folder, `*.yaml`."""
WANTED = "trl==1.16.0"
"""As pip takes it."""


@dataclass(frozen=True)
class Batch:
    """How the responses of a GPU in a step are split."""

    responses: int
    """Of a forward pass."""
    passes: int


def named(name: str) -> tuple[str, float] | None:
    """Mode of the contender of this name, with no staleness threshold; None for somebody else's."""
    return (name, 0.0) if name in MODULES else None


def check(settings: Settings, work: Work) -> None:
    """Raises ValueError, with what to do, where this cannot run."""
    if settings.mode == "trl_async" and settings.gpus != 2:
        raise ValueError("trl_async needs two GPUs, one that generates and one that trains")
    if settings.mode == "trl_async" and settings.attention != "flash_attention_2":
        raise ValueError("trl_async needs --attention flash_attention_2: it knows no other one")
    if settings.mode == "trl_sync" and work.prompts % max(1, settings.gpus):
        # A group must not be split.
        raise ValueError(
            f"trl_sync gives each GPU as many prompts, and {work.prompts} of a step cannot be shared by "
            f"{settings.gpus}"
        )


def batch(settings: Settings, work: Work) -> Batch:
    """As many responses in a pass as its tokens hold."""
    ranks = max(1, settings.gpus) if settings.mode == "trl_sync" else 1
    responses = work.prompts // ranks * SAMPLES
    # One trainer pads all to the longest prompt and the longest response. The other one pads nothing and has
    # a group's prompt once, which leaves room where responses are longer than the mean.
    longest = work.longest if settings.mode == "trl_sync" else float(work.lengths().mean())
    fits = max(1, int(settings.micro_batch // (work.prompt_tokens[1] + longest)))
    each = max(number for number in range(1, min(fits, responses) + 1) if responses % number == 0)
    return Batch(each, responses // each)


def command(settings: Settings, work: Work, folder: Path) -> list[str]:
    """What is run: without a launcher where one device trains, so that no gradients are communicated."""
    inside = [MODULES[settings.mode], *arguments(settings, work, folder)]
    several = settings.mode == "trl_sync" and settings.gpus > 1
    module = ["tests.bench.peers.ranks", str(settings.gpus), *inside] if several else inside
    return [sys.executable, "-m", *module]


def arguments(settings: Settings, work: Work, folder: Path) -> list[str]:
    """What depends on the work or on the machine, as TRL's command line takes it."""
    split = batch(settings, work)
    given: dict[str, object] = {
        "config": HERE / f"{settings.mode}.yaml",
        "output_dir": folder / settings.mode,
        "max_steps": work.steps,
        "max_completion_length": work.longest,
        "per_device_train_batch_size": split.responses,
        "gradient_accumulation_steps": split.passes,
        "use_cpu": settings.gpus == 0,
    }
    if settings.mode == "trl_sync":
        # No CPU has flash-attn.
        attention = settings.attention if settings.gpus else "sdpa"
        given["model_init_kwargs"] = json.dumps({"attn_implementation": attention})
    return [word for name, value in given.items() for word in (f"--{name}", str(value))]


def environment(settings: Settings, folder: Path) -> dict[str, str]:
    """What runs inside reads, which GPUs there are, and what keeps all from asking the network."""
    visible = devices(settings.gpus, os.environ.get("CUDA_VISIBLE_DEVICES"))
    given: dict[str, object] = {"WORK": folder}
    if settings.mode == "trl_async":
        *visible, given["ENGINE"] = visible
    return {
        **variables(given),
        **peer.ALONE,
        "CUDA_VISIBLE_DEVICES": ",".join(visible),
        "TRL_EXPERIMENTAL_SILENCE": "1",
        # Trainer and server are of one machine.
        "VLLM_HOST_IP": "127.0.0.1",
    }


def devices(gpus: int, visible: str | None) -> list[str]:
    """The first `gpus` of those that are visible now, as CUDA_VISIBLE_DEVICES names them; None for all."""
    names = visible.split(",") if visible is not None else [str(number) for number in range(gpus)]
    return names[:gpus]


def run(settings: Settings, work: Work, folder: Path, log: Path, seconds: float) -> list[Ended]:
    """The steps that ended within `seconds`. What TRL says goes to `log`."""
    told = environment(settings, folder)
    return peer.run(command(settings, work, folder), told, log, seconds, work.steps, trl_step)
