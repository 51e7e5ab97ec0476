"""vLLM's engine core as a process of the engine's: its start and its end.

Guarantees: a start that is cancelled goes on in its thread, and `end` waits for it and ends what it started;
the folder of its sockets is held until its processes have ended.
"""

import asyncio
import os
from pathlib import Path

from rljob_runtime.engines import early_core
from rljob_runtime.engines.core_life import CoreLife
from rljob_runtime.engines.last_words import in_one_line
from rljob_runtime.engines.vllm_compat import VllmCore
from rljob_runtime.engines.vllm_shape import VllmShape, environment
from rljob_runtime.engines.vllm_sockets import SOCKETS

_WORDS_SECONDS = 1.0
"""How long a start that failed waits for what its engine core says of it."""


class CoreProcess:
    """See the module's guarantees. All methods belong to one loop."""

    def __init__(self, life: CoreLife) -> None:
        """`life` watches the core from its start to its end."""
        self._life = life
        self._launch: asyncio.Future[VllmCore] | None = None
        self._core: VllmCore | None = None
        self._has_sockets = False

    async def start(self, shape: VllmShape) -> tuple[VllmCore, Path]:
        """The core, and the folder of its sockets. Raises `EngineDied` where vLLM does not start, or the
        engine is closed meanwhile."""
        # Before `VllmCore`, whose constructor imports vLLM.
        sockets = await asyncio.to_thread(SOCKETS.enter)
        self._has_sockets = True
        os.environ.update(environment(shape, os.getpid(), sockets))
        self._launch = asyncio.get_running_loop().run_in_executor(None, _launched, shape)
        try:
            self._core = await asyncio.shield(self._launch)
        except (RuntimeError, ValueError, OSError) as error:
            # What its core tells has the type in it.
            words = " ".join(str(error).split()) if isinstance(error, RuntimeError) else in_one_line(error)
            raise self._life.died(f"vLLM did not start: {words}") from None
        # It may have been closed meanwhile.
        self._life.check()
        self._life.watch(self._core)
        return self._core, sockets

    async def end(self) -> None:
        """End the core's processes, if it was started."""
        if self._launch is None:
            return
        core = self._core
        if core is None:
            # It is starting: there is something to end only when that is over.
            await asyncio.wait((self._launch,))
            core = None if self._launch.exception() else self._launch.result()
        if core is not None:
            self._life.unwatch(core)
            core.stop_outputs()
            await asyncio.to_thread(core.shutdown)
        if self._has_sockets:
            self._has_sockets = False
            await asyncio.to_thread(SOCKETS.leave)


def _launched(shape: VllmShape) -> VllmCore:
    early = early_core.take(shape.accelerator)
    try:
        return VllmCore(shape, early)
    except BaseException as error:
        words = early.last_words(_WORDS_SECONDS)
        # vLLM ends what it has started; what it has not asked for is ended here.
        early.close()
        if words and isinstance(error, Exception):
            # Of what was raised in its core vLLM tells its host no more than that there was something.
            raise RuntimeError(words) from error
        raise
