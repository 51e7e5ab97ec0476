"""How tests start trainer ranks: forked from a server that has imported and made what all of them need.

Where there are accelerators the server has imported nothing: what asks for one at its import, as packages of
kernels do, must not be forked, and which packages are installed there is not known.
"""

import multiprocessing
import os
from multiprocessing import forkserver
from multiprocessing.context import ForkServerContext
from unittest.mock import patch

import torch

_IMPORTED = [
    # What torch.compile imports when it is used first, of which processes of whole runs have no need.
    "functorch.compile",
    "torch._inductor.compile_fx",
    # The last: it keeps garbage collections from all that is imported by then.
    "tests.support.runtime.rank_imports",
]


def rank_context() -> ForkServerContext:
    """The context whose processes are ranks."""
    # Not fork: torch's threads do not survive it.
    context = multiprocessing.get_context("forkserver")
    imported = [] if torch.cuda.device_count() else _IMPORTED
    context.set_forkserver_preload(imported)
    # The server keeps the environment that it starts with, and a vLLM engine of this process has left
    # what turns torch.compile off.
    with patch.dict(os.environ):
        os.environ.pop("TORCH_COMPILE_DISABLE", None)
        forkserver.ensure_running()
    return context
