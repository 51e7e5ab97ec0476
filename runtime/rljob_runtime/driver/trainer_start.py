"""Starts the trainer's ranks on their pods, and sees that what they write can be found again.

Guarantees: ranks run on exactly the pods that the RLJob asks for; in a cluster no training begins where the
trainer's pods would each write checkpoints to a folder of their own.
"""

import asyncio
import tempfile
from collections.abc import Callable
from pathlib import Path

from rljob_runtime.driver.placement import RankPlacement
from rljob_runtime.driver.ranks import RayTrainer
from rljob_runtime.driver.storage import storage_warning

_LOOKS, _LOOK_SECONDS = 5, 1.0
"""Shared storage may show a new file a moment later on other machines: how often it is looked for, and the
time between two looks."""


class TrainerStart:
    """See the module's guarantees."""

    def __init__(
        self,
        trainer: RayTrainer,
        placement: RankPlacement,
        checkpoints: Path,
        one_machine: bool,
        say: Callable[[str], None],
    ) -> None:
        """`checkpoints`: the folder that checkpoints go to; `say` tells a person, in one line."""
        self._trainer = trainer
        self._placement = placement
        self._checkpoints = checkpoints
        self._one_machine = one_machine
        self._say = say

    async def __call__(self) -> None:
        """Start new ranks once their pods are there. Raises `TrainerDied`, `NoTrainerPods`, `StopAsked`,
        `StorageNotShared`."""
        nodes = await self._placement.find()
        await self._trainer.start(nodes)
        self._placement.confirmed()
        if not self._one_machine:
            await self._check_storage(pods=len(set(nodes)))

    async def _check_storage(self, pods: int) -> None:
        self._checkpoints.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=self._checkpoints, prefix=".seen-") as file:
            for _ in range(_LOOKS):
                seen = await self._trainer.sees(Path(file.name))
                if all(seen):
                    break
                # Another machine's file system gives no event.
                await asyncio.sleep(_LOOK_SECONDS)
        if (warning := storage_warning(seen, pods, str(self._checkpoints))) is not None:
            self._say(warning)
