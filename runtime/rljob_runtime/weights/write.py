"""Writing weights to a file that engines and Hugging Face load."""

import errno
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor


def write_weights(
    weights: "Mapping[str, Tensor]", file: Path, metadata: Mapping[str, str] | None = None
) -> None:
    """Write a *.safetensors, with `metadata` in its head; raises `OSError` where that fails."""
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    try:
        save_file(dict(weights), file, metadata={"format": "pt", **(metadata or {})})
    except SafetensorError as error:
        # safetensors passes the system's error number on in its text alone.
        code = errno.ENOSPC if f"os error {errno.ENOSPC}" in str(error) else errno.EIO
        raise OSError(code, os.strerror(code), str(file)) from error
