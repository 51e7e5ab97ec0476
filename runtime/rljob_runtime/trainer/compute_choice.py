"""What `training.compute` leaves open, decided for a model and the devices at hand.

Guarantees: what the RLJob says is done; the rest is what measured fastest on GPUs (docs/measurements.md)
where nothing speaks against it.
"""

import os
import shutil
from collections.abc import Mapping
from typing import Any, NamedTuple

from torch import nn

from rljob_api import RLJob
from rljob_runtime.manifest.trainer_memory import ModelSize, held_bytes
from rljob_runtime.parallel.rank_layout import experts_of

_HELD_SHARE = 0.1
"""Of an accelerator's memory, that held weights and gradients may take unasked."""


class Choice(NamedTuple):
    on: bool
    why: str


def compiler(environment: Mapping[str, str] = os.environ) -> str | None:
    """The C compiler that Triton finds for what starts its kernels; None where there is none."""
    return environment.get("CC") or shutil.which("gcc") or shutil.which("clang")


def compiles(job: RLJob, model: Any, found: str | None) -> Choice:
    """Whether the layers of a Hugging Face model are compiled; `found`: see `compiler`."""
    spec = job.spec
    asked = spec.training.compute.compile
    if asked is not None:
        return Choice(asked, "compute.compile says so")
    text = model.config.get_text_config()
    against = {
        f"accelerator is {spec.accelerator}": spec.accelerator != "nvidia",
        "parallel.tensorParallel is above 1": spec.training.parallel.tensor_parallel > 1,
        "an adapter is trained": spec.training.adapter is not None,
        "the model has experts": bool(experts_of(text.to_dict())),
        "the model does not say which of its modules are layers": not model._no_split_modules,
        "there is no C compiler": found is None,
    }
    reasons = [reason for reason, holds in against.items() if holds]
    return Choice(not reasons, reasons[0] if reasons else f"with {found}")


def holds_weights(job: RLJob, size: ModelSize, memory: int) -> bool:
    """Whether weights are gathered once for an update though no samples are shared. `memory`: bytes of an
    accelerator."""
    asked = job.spec.training.compute.hold_weights
    if asked is not None:
        return asked
    return job.spec.accelerator != "cpu" and held_bytes(job, size) <= _HELD_SHARE * memory


def size_of(policy: nn.Module, teacher: nn.Module | None, adapter: bool) -> ModelSize:
    """`adapter`: whether the policy has one, which alone is trained."""
    all_of_it = sum(each.numel() for each in policy.parameters())
    taught = sum(each.numel() for each in teacher.parameters()) if teacher is not None else 0
    if not adapter:
        return ModelSize(all_of_it, teacher=taught)
    trained = sum(each.numel() for each in policy.parameters() if each.requires_grad)
    return ModelSize(all_of_it - trained, trained, taught)
