"""Sharded weights while ranks make different numbers of passes.

A rank may not wait in FSDP for a rank that makes no such pass. So all ranks gather the weights together,
before the first pass, and reduce the gradients together, in the last one, which every rank makes by itself;
between them no pass of FSDP communicates.

Guarantees: one gathering and one reduction for each update, whatever the passes; gradients of passes before
the last are added up in float32. Costs a rank the memory of all weights, and of all gradients in float32.
"""

from torch import nn
from torch.distributed.fsdp import FSDPModule


class HeldWeights:
    """The weights of a model that was sharded by `sharding.shard`. All ranks make each call together."""

    def __init__(self, model: nn.Module) -> None:
        self._parts = [module for module in model.modules() if isinstance(module, FSDPModule)]
        for part in self._parts:
            part.set_reshard_after_forward(False, recurse=False)

    def gather(self) -> None:
        """Hold all weights on this rank, for all passes up to `release` or the last backward pass."""
        for part in self._parts:
            part.unshard()

    def expect_backward(self, last: bool) -> None:
        """Say whether the next backward pass is the rank's last one of the update: that one reduces the
        gradients of all, and gives the weights up."""
        for part in self._parts:
            part.set_requires_gradient_sync(last, recurse=False)
            part.set_reshard_after_backward(last, recurse=False)

    def release(self) -> None:
        """Give the gathered weights up, after passes without gradients."""
        for part in self._parts:
            part.reshard()
