"""gloo in the place of NCCL: a sender and its receivers on CPUs, for tests of what a lost member costs."""

import asyncio
import hashlib
import os
from collections.abc import Callable, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
from torch.distributed import ProcessGroupGloo, TCPStore

from rljob_runtime.engines.fake import FakeEngine
from rljob_runtime.engines.protocol import WeightRef
from rljob_runtime.trainer.rank_actor import TrainerActor
from rljob_runtime.weights.collective import CollectiveSender, EngineGroup, Rendezvous

Shapes = Mapping[str, tuple[int, ...]]
_SECONDS = timedelta(seconds=300)
_LEFT_BEHIND: list[ProcessGroupGloo] = []
"""Groups that were aborted: kept for ever, see `GlooSender._abort`."""


class GlooSender(CollectiveSender):
    """The trainer's side. Like NCCL's, its calls wait for a silent member as long as it takes."""

    def _device(self) -> None:
        pass

    def _join(self, host: str, port: int, world_size: int, device: None) -> ProcessGroupGloo:
        return ProcessGroupGloo(TCPStore(host, port, world_size, True, _SECONDS), 0, world_size, _SECONDS)

    def _stream(self) -> None:
        pass

    def _broadcast(self, tensor: torch.Tensor, stream: None) -> None:
        self._group.broadcast([tensor]).wait()

    def _synchronize(self) -> None:
        pass

    def _abort(self, group: ProcessGroupGloo) -> None:
        # A broadcast that is under way goes on waiting, and whoever drops the group waits for it.
        _LEFT_BEHIND.append(group)
        group.abort()


def join(location: str) -> ProcessGroupGloo:
    """The engine's side of the meeting."""
    meeting = Rendezvous.parse(location)
    store = TCPStore(meeting.host, meeting.port, meeting.world_size, False, _SECONDS)
    return ProcessGroupGloo(store, meeting.rank_offset, meeting.world_size, _SECONDS)


def receive(group: ProcessGroupGloo, shapes: Shapes) -> dict[str, torch.Tensor]:
    """What the sender broadcasts."""
    tensors = {name: torch.empty(*shape) for name, shape in shapes.items()}
    for tensor in tensors.values():
        group.broadcast([tensor]).wait()  # type: ignore[attr-defined]
    return tensors


def digest(tensors: Mapping[str, torch.Tensor]) -> str:
    """SHA-256 of names and values, as hexadecimal digits; the tensors lie on the CPU."""
    found = hashlib.sha256()
    for name, tensor in sorted(tensors.items()):
        found.update(name.encode() + tensor.detach().contiguous().numpy().tobytes())
    return found.hexdigest()


class GlooEngine(FakeEngine):
    """An engine that takes its weights over gloo, and says in `folder` what it got; one of `silent` comes to
    no meeting."""

    def __init__(self, name: str, folder: Path, shapes: Shapes, silent: bool) -> None:
        super().__init__(name, length_of=lambda request: 1)
        self._folder = folder
        self._shapes = shapes
        self._silent = silent
        self._location = ""
        self._group: ProcessGroupGloo | None = None

    async def load(self, ref: WeightRef) -> None:
        (self._folder / f"{self.name}.loading").write_text(str(os.getpid()))
        if self._silent:
            await asyncio.Event().wait()
        got = await asyncio.to_thread(self._receive, ref.location)
        (self._folder / f"{self.name}.{ref.version}").write_text(digest(got))
        await super().load(ref)

    def _receive(self, location: str) -> dict[str, torch.Tensor]:
        if self._group is None or location != self._location:
            self._group, self._location = join(location), location
        return receive(self._group, self._shapes)


class GlooTrainerActor(TrainerActor):
    """A trainer's rank that sends over gloo."""

    def __init__(self, spec: bytes) -> None:
        super().__init__(spec)
        make: Callable[[str], Any] = lambda transport: GlooSender()  # noqa: E731
        self._engines = EngineGroup(make)
