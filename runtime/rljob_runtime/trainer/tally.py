"""What a rank counts while it trains a step.

Guarantees: adding never waits for the device; everything is read in one transfer, at the step's end; sums
are made in float64, in the order in which they were added.
"""

from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor

from rljob_runtime.trainer.loss import TokenLoss

_SUMS = (
    "loss", "policy_loss", "kl", "teacher_kl", "entropy", "clipped", "importance", "parity", "parity_tokens"
)  # fmt: skip
_COUNTS = ("response_tokens", "tokens")
_NONE = -1.0
"""The largest difference where no token was compared."""


@dataclass(frozen=True)
class Totals:
    """Sums over the micro-batches of all ranks."""

    sums: dict[str, float]
    parity_max: float | None
    """Largest |engine - trainer| log-probability; None where no token was compared."""
    updates: int
    grad_norm: float
    """Sum over the updates."""


class Tally:
    """Sums over a rank's micro-batches."""

    def __init__(self) -> None:
        self._rows: list[Tensor] = []
        self._counts = [0, 0]
        self._updates = 0
        self._grad_norm = 0.0

    def add(
        self,
        loss: Tensor,
        each: TokenLoss,
        weights: Tensor,
        entropy: Tensor | None,
        gap: Tensor,
        compared: Tensor,
        tokens: int,
    ) -> None:
        """Count a micro-batch of `tokens` tokens. `gap` is |engine - trainer| of each response token, of
        which those in `compared` count; `weights` are the tokens' weights in the batch's mean. No `entropy`
        counts as 0."""
        zero, none = gap.new_zeros(()), gap.new_full((), _NONE)
        self._rows.append(
            torch.stack(
                (
                    loss, (each.policy * weights).sum(), each.kl.sum(), each.teacher_kl.sum(),
                    zero if entropy is None else entropy.sum(), each.clipped.sum(),
                    each.importance.sum(), torch.where(compared, gap, zero).sum(),
                    compared.sum().to(gap.dtype), torch.where(compared, gap, none).max(),
                )
            ).detach()
        )  # fmt: skip
        self._counts[0] += len(gap)
        self._counts[1] += tokens

    def add_update(self, grad_norm: float) -> None:
        """Count an optimizer update; `grad_norm` is over all ranks."""
        self._updates += 1
        self._grad_norm += grad_norm

    def totals(self) -> Totals:
        """The sums over all ranks, which call it together. Waits for the device."""
        sums = torch.zeros(len(_SUMS) + len(_COUNTS), dtype=torch.float64)
        largest = torch.tensor([_NONE], dtype=torch.float64)
        if self._rows:
            rows = torch.stack(self._rows).cpu().double()
            sums[: len(_SUMS)] = rows[:, :-1].sum(0)
            largest = rows[:, -1:].max(0).values
        sums[len(_SUMS) :] = torch.tensor(self._counts)
        if dist.get_world_size() > 1:
            dist.all_reduce(sums)
            dist.all_reduce(largest, op=dist.ReduceOp.MAX)
        named = dict(zip((*_SUMS, *_COUNTS), sums.tolist(), strict=True))
        compared = named["parity_tokens"] > 0
        return Totals(named, largest.tolist()[0] if compared else None, self._updates, self._grad_norm)
