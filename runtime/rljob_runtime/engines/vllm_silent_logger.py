"""A logger of vLLM that does nothing.

Guarantees: an engine with it registers no metric in its process, so that several engines may start there at
the same time. vLLM's own logger for Prometheus takes those of other engines out of the process's registry,
then puts its own in; two that do so in two threads meet there, and one engine does not start.
"""

from collections.abc import Sequence
from typing import Any


def silent_logger() -> type[Any]:
    """What vLLM takes in place of its loggers, all of them: it makes one for all engine cores of an engine.
    Imports vLLM."""
    from vllm.v1.metrics.loggers import PrometheusStatLogger

    # vLLM adds its own for Prometheus unless one of those that it is given is of that class.
    class SilentLogger(PrometheusStatLogger):  # type: ignore[misc]
        def __init__(self, vllm_config: Any, engine_indexes: Sequence[int] | None = None) -> None:
            pass

        def log_engine_initialized(self) -> None:
            """Nothing."""

    return SilentLogger
