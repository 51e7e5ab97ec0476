"""Layers that are compiled in tests."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from unittest.mock import patch

import torch

from rljob_runtime.trainer.compilation import Compilations


@contextmanager
def compiled_quickly() -> Iterator[None]:
    """What is compiled within it is compiled anew, and without a compiler of machine code, which takes
    seconds; something has to be."""
    torch._dynamo.reset()
    compilations = Compilations()
    try:
        with patch.object(torch, "compile", partial(torch.compile, backend="aot_eager")):
            yield
        assert compilations() > 0, "nothing was compiled"
    finally:
        compilations.close()
