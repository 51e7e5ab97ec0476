"""Lets the drafter of a vLLM engine draw on responses that ended, on this engine and elsewhere.

Guarantees: where the engine does not draft nothing is kept or sent; a response that ended elsewhere is told
when there is time for it, and its loss is logged.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence

from rljob_api.rollout import Speculation
from rljob_runtime.engines.core_life import CoreLife
from rljob_runtime.engines.finished_texts import FinishedTexts, Siblings, finished_text
from rljob_runtime.engines.protocol import EngineDied, FinishedText, Request
from rljob_runtime.engines.vllm_compat import VllmCore
from rljob_runtime.samples import Generation

_log = logging.getLogger(__name__)


class Teaching:
    """See the module's guarantees. All methods belong to one loop."""

    def __init__(
        self, engine: str, life: CoreLife, options: Speculation | None, core: Callable[[], VllmCore]
    ) -> None:
        """`engine`: its name, for messages; `core` gives it while it lives."""
        self._engine = engine
        self._life = life
        self._core = core
        self._finished = FinishedTexts(options) if options is not None else None
        self._tasks: set[asyncio.Task[None]] = set()

    async def ended_here(self, request: Request, got: Generation, others: int) -> None:
        """Let the drafts for the `others` that run on draw on a response that ended."""
        if self._finished is None:
            return
        if (text := finished_text(request, got)) is not None:
            self._finished.add(text)
        if texts := self._finished.due(others):
            await self._life.guard(self._core().learn(texts))

    def ended_elsewhere(self, texts: Sequence[FinishedText], running: int) -> None:
        """The same for responses of other engines, while so many requests run; returns at once."""
        if self._finished is None:
            return
        for text in texts:
            self._finished.add(text)
        if due := self._finished.due(running):
            task = asyncio.get_running_loop().create_task(self._tell(due))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _tell(self, texts: list[Siblings]) -> None:
        try:
            await self._life.guard(self._core().learn(texts))
        except EngineDied:
            pass  # Whatever runs on it tells that.
        except Exception as error:  # noqa: BLE001 - responses come all the same, without drafts from these
            lost = sum(len(responses) for _, responses in texts)
            _log.warning("engine %s: %d texts to draft from are lost: %s", self._engine, lost, error)
