"""Writing weights to a folder that engines load."""

import errno
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor


def write_weights(weights: "Mapping[str, Tensor]", folder: Path) -> None:
    """Write `model.safetensors`; raises `OSError` where that fails."""
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    try:
        save_file(dict(weights), folder / "model.safetensors", metadata={"format": "pt"})
    except SafetensorError as error:
        code = errno.ENOSPC if f"os error {errno.ENOSPC}" in str(error) else errno.EIO
        raise OSError(code, os.strerror(code), str(folder)) from error
