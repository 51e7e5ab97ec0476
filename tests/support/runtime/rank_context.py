"""How tests start trainer ranks: forked from a server that has imported and made what all of them need."""

import multiprocessing
import os
from multiprocessing import forkserver
from multiprocessing.context import ForkServerContext
from unittest.mock import patch


def rank_context() -> ForkServerContext:
    """The context whose processes are ranks."""
    # Not fork: torch's threads do not survive it.
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tests.support.runtime.rank_imports"])
    # The server keeps the environment that it starts with, and a vLLM engine of this process has left
    # what turns torch.compile off.
    with patch.dict(os.environ):
        os.environ.pop("TORCH_COMPILE_DISABLE", None)
        forkserver.ensure_running()
    return context
