"""An asyncio event loop whose time is virtual.

Guarantees: `loop.time()` starts at 0 and moves only when every task waits, then straight to the next timer;
a program whose tasks all wait for something that no timer will bring raises `Stalled` instead of hanging;
equal programs run equally.
"""

import asyncio
import selectors
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class Stalled(RuntimeError):
    """Every task waits and no timer is set."""


class _JumpingSelector(selectors.SelectSelector):
    """Instead of sleeping until the next timer, moves the loop's clock there."""

    now = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        events = super().select(0)
        # 0: some callback is ready, and no time passes. None: neither a callback nor a timer is left.
        if events or timeout == 0:
            return events
        if timeout is None:
            raise Stalled("every task waits and no timer is set")
        self.now += timeout
        return events


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """See the module's guarantees. What it runs has neither sockets nor threads: their events come in real
    time."""

    def __init__(self) -> None:
        self._jumping = _JumpingSelector()
        super().__init__(self._jumping)

    def time(self) -> float:
        return self._jumping.now


def run_virtual(main: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine to its end in virtual time."""
    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        return runner.run(main)
