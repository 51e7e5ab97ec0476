"""AdamW, and the learning rate of each update.

Guarantees: the learning rate is a pure function of the number of updates made, so a restart goes on with
exactly the rate that would have come next; a gradient that is not finite changes neither weights nor
moments, which is decided on the device where AdamW's fused kernel serves.
"""

import math
from collections.abc import Iterable
from typing import Any, Literal

import torch
from torch import Tensor

from rljob_api.algorithm import Optimizer
from rljob_runtime.trainer.adamw_bfloat16 import AdamWBfloat16

Shape = Literal["constant", "linear", "cosine"]


def learning_rate_factor(shape: Shape, warmup: int, total: int | None, update: int) -> float:
    """Share of the peak learning rate at `update` (from 0).

    Rises as (update + 1) / warmup over the first `warmup` updates, then falls from 1 to 0 over the rest of
    `total`; raises `ValueError` where that is not known and needed.
    """
    if update < warmup:
        return (update + 1) / warmup
    if shape == "constant":
        return 1.0
    if total is None:
        raise ValueError(
            f"optimizer.schedule: {shape} needs the job's number of updates: set schedule.totalSteps"
        )
    progress = min(1.0, (update - warmup) / max(1, total - warmup))
    return 1.0 - progress if shape == "linear" else 0.5 * (1.0 + math.cos(math.pi * progress))


class ScheduledAdamW:
    """AdamW (arXiv:1711.05101) with gradient clipping and a learning-rate schedule."""

    def __init__(
        self, parameters: Iterable[torch.nn.Parameter], settings: Optimizer, total_updates: int | None
    ) -> None:
        """`total_updates`: optimizer updates in the whole job."""
        self.updates = 0
        """Updates made so far, skipped ones included."""
        self._norms: list[tuple[int, Tensor]] = []
        """Of the gradients, since `norms` was asked last; each with `updates` as it was then."""
        self._broken: Tensor | None = None
        """On their device 1 where one of those is not finite, else 0."""
        self._settings = settings
        self._total = total_updates
        # A schedule that lacks its total is refused here, and not at the first update after the warm-up.
        learning_rate_factor(
            settings.schedule, settings.warmup_updates, total_updates, settings.warmup_updates
        )
        self._parameters = list(parameters)
        options: dict[str, Any] = {
            "lr": settings.learning_rate,
            "betas": (settings.beta1, settings.beta2),
            "eps": settings.epsilon,
            "weight_decay": settings.weight_decay,
        }
        self.adamw: torch.optim.Optimizer
        if settings.state_format == "bfloat16":
            self.adamw = AdamWBfloat16(self._parameters, **options)
        else:
            # One pass over memory for each tensor, sharded or not; torch's own loop makes one for each of its
            # operations. States in main memory are updated on CPUs.
            kinds = {parameter.device.type for parameter in self._parameters}
            fused = kinds in ({"cuda"}, {"cpu"}) or None
            self.adamw = torch.optim.AdamW(self._parameters, fused=fused, **options)

    @property
    def learning_rate(self) -> float:
        """The learning rate of the next update."""
        settings = self._settings
        factor = learning_rate_factor(settings.schedule, settings.warmup_updates, self._total, self.updates)
        return settings.learning_rate * factor

    def clip(self) -> None:
        """Scale the gradients down to maxGradNorm. Does not wait for the device."""
        norm = torch.nn.utils.clip_grad_norm_(self._parameters, self._settings.max_grad_norm)
        # Of a sharded model it is a DTensor.
        whole: Tensor = norm.full_tensor() if hasattr(norm, "full_tensor") else norm
        self._norms.append((self.updates, whole.detach()))
        broken = (~whole.isfinite()).float()
        self._broken = broken if self._broken is None else torch.maximum(self._broken, broken)

    def step(self) -> None:
        """Make an update with the gradients, which were clipped, and forget them. None is made where their
        norm is not finite, or one that `norms` has yet to tell of: that waits for the device only where the
        fused kernel does not serve."""
        for group in self.adamw.param_groups:
            group["lr"] = self.learning_rate
        if all(group["fused"] for group in self.adamw.param_groups):
            # How torch.amp.GradScaler tells an optimizer of such gradients; the fused kernel looks at it on
            # the device, and leaves everything as it is.
            self.adamw.found_inf = self._broken  # type: ignore[attr-defined]
            try:
                self.adamw.step()
            finally:
                del self.adamw.found_inf  # type: ignore[attr-defined]
        elif not self._broken:
            self.adamw.step()
        self.skip()

    def norms(self) -> list[float]:
        """The norms of the gradients that were clipped since the last call, in order, over all ranks, before
        they were clipped; waits for the device. With the first that is not finite the list ends: neither its
        update nor a later one was made, and none of these counts."""
        taken, self._norms, self._broken = self._norms, [], None
        if not taken:
            return []
        found: list[float] = torch.stack([norm for _, norm in taken]).tolist()
        for index, norm in enumerate(found):
            if not math.isfinite(norm):
                self.updates = taken[index][0]
                return found[: index + 1]
        return found

    def skip(self) -> None:
        """Count an update whose batch had nothing to learn from; the weights stay."""
        self.forget()
        self.updates += 1

    def forget(self) -> None:
        """Drop the gradients."""
        self.adamw.zero_grad(set_to_none=True)
