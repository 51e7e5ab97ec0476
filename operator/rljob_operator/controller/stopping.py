"""How the process is told to end, and how its waits heed that.

Guarantees: while `StopSignals` is entered, SIGTERM and Ctrl-C set `came` and do nothing else, but where
another part of the process takes them: then `take` must be called again.
"""

import asyncio
import signal
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from types import TracebackType
from typing import Any, Self, TypeVar

ResultT = TypeVar("ResultT")


class StopSignals:
    """SIGTERM and SIGINT, of the main thread's running loop. Use as a context manager."""

    def __init__(self) -> None:
        self.came = asyncio.Event()
        """One of them has come."""

    def __enter__(self) -> Self:
        self.take()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for each in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().remove_signal_handler(each)

    def take(self) -> None:
        """Hear of them, in place of whoever did."""
        for each in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(each, self.came.set)


async def unless(stopped: asyncio.Event, work: Coroutine[Any, Any, ResultT]) -> ResultT | None:
    """What `work` gives; None where `stopped` is set before that: then `work` is cancelled."""
    working = asyncio.create_task(work)
    waiting = asyncio.create_task(stopped.wait())
    try:
        await asyncio.wait({working, waiting}, return_when=asyncio.FIRST_COMPLETED)
        return working.result() if working.done() else None
    finally:
        working.cancel()
        waiting.cancel()
        await asyncio.gather(working, waiting, return_exceptions=True)


async def in_thread(work: Callable[[], ResultT]) -> ResultT:
    """What `work` gives, which may block. Where this is cancelled, `work` goes on, and the process ends
    without it."""
    found: Future[ResultT] = Future()
    # So that whoever stops waiting for it does not cancel it: its result could not be set.
    found.set_running_or_notify_cancel()

    def run() -> None:
        try:
            found.set_result(work())
        except BaseException as error:  # noqa: BLE001 - whoever waits for it raises it
            found.set_exception(error)

    # Not of asyncio's pool, which would hold up the end of the process until `work` has ended.
    threading.Thread(target=run, daemon=True).start()
    return await asyncio.wrap_future(found)
