"""From main memory to a device without waiting for it.

A copy out of memory that the system may move makes the host wait for all that the device has been given to
do. So arrays are first copied into pinned memory, which torch keeps for the next ones.
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
