"""From main memory to a device without waiting for it, and weights from there to main memory.

A copy out of memory that the system may move makes the host wait for all that the device has been given to
do. So arrays are first copied into pinned memory, which torch keeps for the next ones. Weights are copied to
the same memory each time: new pages for all of them would take as long as the copy.
"""

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor


def to_device(values: NDArray[Any], device: torch.device) -> Tensor:
    """A copy of `values`, of the same number format, on the device; not there yet for the host, but for all
    that the device is given to do from now on."""
    # Decoded arrays are views of the frame that came, and torch wants memory that can be written to.
    tensor = torch.from_numpy(np.array(values))
    if device.type == "cpu":
        return tensor
    return tensor.pin_memory().to(device, non_blocking=True)


def indices_to_device(values: NDArray[Any], device: torch.device) -> Tensor:
    """`values` as int64, on the device; see `to_device`."""
    return to_device(values.astype(np.int64), device)


class WeightsCopy:
    """Tensors in main memory as they were when each was taken; taken again, a tensor is written over.

    Those of a device are there once the device has done what it was given (see `Devices.synchronize`).
    """

    def __init__(self) -> None:
        self.tensors: dict[str, Tensor] = {}
        """By name."""

    def take(self, name: str, tensor: Tensor) -> None:
        """Copy a tensor, which has the same shape and number format each time."""
        kept, on_device = self.tensors.get(name), tensor.device.type != "cpu"
        if kept is None:
            # Into memory that the system may move, a device copies at a tenth of its rate.
            kept = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=on_device)
            self.tensors[name] = kept
        kept.copy_(tensor, non_blocking=on_device)
