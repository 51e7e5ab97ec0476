"""Whether vLLM's engine core lives.

Guarantees: what is awaited through `guard` ends when the core does, with `EngineDied`, which tells the first
cause; nobody waits for a process that is gone.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from rljob_runtime.engines.protocol import EngineDied
from rljob_runtime.engines.vllm_compat import VllmCore

T = TypeVar("T")

_END_SECONDS = 2.0
"""How long a core that says that it is dead is given to end."""


class CoreLife:
    """See the module's guarantees. All methods belong to one loop."""

    def __init__(self, engine: str, on_end: Callable[[], None]) -> None:
        """`engine`: its name, for messages; `on_end` is called at the end, which may come more than once."""
        self._engine = engine
        self._on_end = on_end
        self._cause: str | None = None
        self._ended: asyncio.Future[None] | None = None
        self._core: VllmCore | None = None

    @property
    def over(self) -> bool:
        """Whether it has ended."""
        return self._cause is not None

    def begin(self) -> None:
        """Before the first `guard`, in the loop."""
        self._ended = asyncio.get_running_loop().create_future()

    def watch(self, core: VllmCore) -> None:
        """End when one of the core's processes does."""
        self._core = core
        for process in core.processes:
            # A sentinel is readable once its process has ended.
            asyncio.get_running_loop().add_reader(process.sentinel, self._on_exit, core, process)

    def unwatch(self, core: VllmCore) -> None:
        """Before the core's processes are ended on purpose."""
        for process in core.processes:
            asyncio.get_running_loop().remove_reader(process.sentinel)

    def end(self, cause: str) -> None:
        """It has ended; the first cause is kept."""
        if self._cause is None:
            self._cause = f"engine {self._engine}: {cause}"
        self._on_end()
        if self._ended is not None and not self._ended.done():
            self._ended.set_result(None)

    def died(self, cause: str) -> EngineDied:
        """End, and return what callers get: it tells the first cause."""
        self.end(cause)
        return EngineDied(self._cause)

    def check(self) -> None:
        """Raises `EngineDied` where it has ended."""
        if self._cause is not None:
            raise EngineDied(self._cause)

    async def guard(self, work: Awaitable[T]) -> T:
        """Await something that only a live engine core can end; raises `EngineDied` as soon as it is dead."""
        assert self._ended is not None
        task = asyncio.ensure_future(work)
        try:
            await asyncio.wait((task, self._ended), return_when=asyncio.FIRST_COMPLETED)
            self.check()
            return task.result()
        except Exception as error:
            if self._core is not None and isinstance(error, self._core.dead_error):
                # The end of its process, which comes right after, tells why.
                await asyncio.wait((self._ended,), timeout=_END_SECONDS)
                self.end("the engine core ended")
                self.check()
            raise
        finally:
            if not task.done():
                task.cancel()
            elif not task.cancelled():
                task.exception()  # retrieved, so that asyncio does not complain about it

    def _on_exit(self, core: VllmCore, process: Any) -> None:
        asyncio.get_running_loop().remove_reader(process.sentinel)
        # The code is known a moment after the end itself, which is not worth waiting for.
        code = "" if process.exitcode is None else f" with exit code {process.exitcode}"
        words = core.last_words()
        self.end(f"its engine core (process {process.pid}) ended{code}{words and ': ' + words}")
        core.stop_outputs()
