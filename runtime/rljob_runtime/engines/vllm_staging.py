"""The versions that arrive in a vLLM engine while it generates, as its host sees them.

Guarantees: one version arrives at a time; what arrived is put into the model only for the reference that it
came by; a newer one takes its place.
"""

import asyncio
import logging
from collections.abc import Awaitable
from pathlib import Path

from rljob_runtime.engines.core_life import CoreLife
from rljob_runtime.engines.last_words import in_one_line
from rljob_runtime.engines.protocol import EngineDied, WeightRef
from rljob_runtime.engines.staging_reports import StagingReports
from rljob_runtime.engines.vllm_compat import VllmCore
from rljob_runtime.weights.contents import Shapes, check_same_model
from rljob_runtime.weights.shm import WeightsGone, reading

_log = logging.getLogger(__name__)


class NotStaged(RuntimeError):
    """A version that is broadcast did not arrive, so that it never will; the message says why."""


class Staging:
    """See the module's guarantees. All methods belong to one loop."""

    def __init__(self, engine: str, life: CoreLife, ranks: int) -> None:
        """`engine`: its name, for messages; `ranks`: how many accelerators it spans."""
        self.possible = False
        """Whether versions arrive while it generates; known after `open`."""
        self._engine = engine
        self._life = life
        self._ranks = ranks
        self._reports: StagingReports | None = None
        self._number = 0
        """Of the newest one that was begun; each has one of its own."""
        self._staged: WeightRef | None = None
        """What has arrived and is not in the model."""
        self._one_at_a_time = asyncio.Lock()

    async def open(self, core: VllmCore, sockets: Path) -> None:
        """See what the engine can do; its ranks report through a socket in that folder."""
        obstacle = await self._life.guard(core.staging_obstacle())
        if obstacle:
            _log.info("engine %s takes versions in its pause: %s", self._engine, obstacle)
            return
        self._reports = StagingReports(sockets / f"staged-{id(self):x}", self._ranks)
        await self._reports.open()
        self.possible = True
        if core.swap_obstacle:
            _log.info("engine %s is paused for its versions: %s", self._engine, core.swap_obstacle)

    async def close(self) -> None:
        """Stop listening to the ranks."""
        if self._reports is not None:
            await self._reports.close()

    async def bring(self, core: VllmCore, ref: WeightRef, tensors: Shapes) -> None:
        """Have a version arrive, where that is possible; `tensors` is what it has. Raises `WeightsGone`,
        `ValueError`, and `NotStaged` for one that is broadcast. One that is stored and does not arrive is
        loaded in the pause."""
        reports = self._reports
        if reports is None or not (ref.staged or ref.transport == "shm"):
            return
        async with self._one_at_a_time:
            self._staged = None
            self._number += 1
            number, path = self._number, str(reports.path)
            if ref.staged:
                why = await self._arrive(
                    reports, number, core.stage_broadcast(number, ref.location, tensors, path)
                )
            else:
                with reading(Path(ref.location)) as folder:
                    check_same_model(tensors, folder)
                    why = await self._arrive(reports, number, core.stage_folder(number, folder, path))
            if not why:
                self._staged = ref
                return
        message = f"version {ref.version} did not arrive from {ref.location}: {why}"
        if ref.staged:
            raise NotStaged(message)
        _log.warning("engine %s: %s", self._engine, message)

    async def _arrive(self, reports: StagingReports, number: int, begin: Awaitable[None]) -> str:
        """Begin, and wait until it has arrived; why it has not, "" where it has."""
        try:
            await self._life.guard(begin)
            return await self._life.guard(reports.arrived(number))
        except EngineDied:
            raise
        except Exception as error:  # noqa: BLE001 - whatever went wrong in the core, the model is as it was
            return in_one_line(error)

    def take_staged(self, ref: WeightRef) -> int | None:
        """The number under which a version has arrived, to be put into the model now; None where it has
        not."""
        if self._staged != ref:
            return None
        self._staged = None
        return self._number

    def take(self, ref: WeightRef) -> int | None:
        """The same in the engine's pause, in which what has arrived is of no use where another version is
        loaded; None where `ref` is to be loaded in another way. Raises `WeightsGone` where there is none."""
        number = self.take_staged(ref)
        self._staged = None
        if number is None and ref.staged:
            raise WeightsGone(f"version {ref.version} was not there when it was to be loaded")
        return number
