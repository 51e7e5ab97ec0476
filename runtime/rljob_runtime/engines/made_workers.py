"""Something that is done with each of vLLM's workers as soon as it is made.

Guarantee: a worker is made as vLLM makes it, and nothing of it has been called before.
"""

from collections.abc import Callable
from functools import wraps
from typing import Any


def when_made(do: Callable[[Any], None]) -> None:
    """Call `do` with each worker that is made in this process from now on. Imports vLLM."""
    # All workers' base, whatever the device. Here, as vLLM is imported once its environment is set.
    from vllm.v1.worker import worker_base

    base: Any = worker_base.WorkerBase
    original = base.__init__

    @wraps(original)
    def __init__(self: Any, *arguments: Any, **options: Any) -> None:
        original(self, *arguments, **options)
        do(self)

    base.__init__ = __init__
