"""Has vLLM look at a model's class in the process that asks.

By itself vLLM starts one more Python for it, which imports vLLM only to answer, wherever its cache of answers
is empty: in each new pod. It does so to keep the asking process free of CUDA, as it would then fork that.
Engine cores of this project are not forked.

Guarantees: the answers are vLLM's own; a version of vLLM that asks in another way is left as it is.
"""

from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")
_ASKS = "_run_in_subprocess"
"""vLLM's function, of its model registry."""


def inspect_here() -> None:
    """From now on this process looks by itself. Imports vLLM."""
    # Here, as vLLM is imported once its environment is set.
    from vllm.model_executor.models import registry

    own: Any = registry
    if hasattr(own, _ASKS):
        setattr(own, _ASKS, _run)


def _run(inspect: Callable[[], T]) -> T:
    return inspect()
