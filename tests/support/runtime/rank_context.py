"""How tests start trainer ranks: forked from a server that has imported and made what all of them need."""

import multiprocessing
from multiprocessing.context import ForkServerContext


def rank_context() -> ForkServerContext:
    """The context whose processes are ranks."""
    # Not fork: torch's threads do not survive it.
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tests.support.runtime.rank_imports"])
    return context
