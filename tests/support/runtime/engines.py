"""Engines for tests: each kind on a tiny model, with what a test does to any of them."""

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

import torch

from rljob_runtime.engines.fake import FakeEngine, FakeTiming
from rljob_runtime.engines.fetching import FetchingEngine, FetchSpec
from rljob_runtime.engines.joint import JointEngine
from rljob_runtime.engines.protocol import Engine, Sampling, WeightRef
from rljob_runtime.engines.torch import TorchEngine
from rljob_runtime.engines.vllm import VllmEngine
from rljob_runtime.net.auth import new_keys
from rljob_runtime.weights.tcp_server import FolderServer
from tests.support.runtime.forked_cores import fork_cores
from tests.support.runtime.tiny_models import PLAIN, vllm_device, weights_at

E = TypeVar("E", bound=Engine)
V = TypeVar("V", bound=VllmEngine)
SLOTS, LENGTH = 16, 128


def fake_engine(
    folder: Path, name: str = "fake", sampling: Sampling = PLAIN, slots: int = SLOTS, length: int = LENGTH
) -> FakeEngine:
    """One in real time, 4 ms for a token. Without stop tokens responses end only where they must, with some
    after two tokens."""
    ends = 2 if sampling.stop_token_ids else 2**31
    timing, kv_tokens = FakeTiming(step_seconds=0.004), slots * length
    return FakeEngine(name, lambda request: ends, slots, timing, length, folder, kv_tokens)


def torch_engine(
    folder: Path,
    name: str = "torch",
    sampling: Sampling = PLAIN,
    slots: int = SLOTS,
    length: int = LENGTH,
    keep_kv: bool = False,
) -> TorchEngine:
    return TorchEngine(name, folder, sampling, slots, length, keep_kv=keep_kv)


def vllm_engine(
    folder: Path,
    name: str = "vllm",
    sampling: Sampling = PLAIN,
    slots: int = SLOTS,
    length: int = LENGTH,
    **options: Any,
) -> VllmEngine:
    return beside_others(VllmEngine(name, folder, sampling, slots, length, **vllm_device(), **options))


def beside_others(made: V) -> V:
    """On an accelerator: with a KV cache of the size that it has on CPUs, for vLLM gives up where other tests
    take memory of the accelerator, or give some back, while it looks what is left for one."""
    if torch.cuda.is_available():
        made.take_kv_cache(2**26)
    return made


class StagedEngine(VllmEngine):
    """One that takes each version into its memory before it is loaded: `staged_engine`."""

    async def load(self, ref: WeightRef) -> None:
        # Engines that cannot do so are tested by themselves.
        assert self.stages
        if self._paused:
            await self.prepare(ref)
        await super().load(ref)


def staged_engine(
    folder: Path, name: str = "staged", sampling: Sampling = PLAIN, slots: int = SLOTS, length: int = LENGTH
) -> StagedEngine:
    """To be started in `plain_linear`."""
    return beside_others(StagedEngine(name, folder, sampling, slots, length, **vllm_device()))


class FedEngine(FetchingEngine):
    """An engine that gets each folder it is to load over the network, from a server in this process."""

    def __init__(self, name: str, inner: Engine, folder: Path) -> None:
        server_keys, client_keys = new_keys()
        self._folders: dict[str, Path] = {}
        self._server = FolderServer("tcp://127.0.0.1:0", server_keys, lambda key: self._folders[key])
        fetch = FetchSpec(f"{name}-{os.getpid()}", server_keys.public, client_keys)
        super().__init__(name, lambda _: inner, folder, fetch)

    async def load(self, ref: WeightRef) -> None:
        key = f"v{len(self._folders)}"
        self._folders[key] = Path(ref.location)
        await super().load(WeightRef(ref.version, "tcp", f"{self._server.endpoint.address}/{key}"))

    async def close(self) -> None:
        await super().close()
        self._server.close()


def fed_engine(
    folder: Path, name: str = "fed", sampling: Sampling = PLAIN, slots: int = SLOTS, length: int = LENGTH
) -> FedEngine:
    return FedEngine(name, torch_engine(folder, name, sampling, slots, length), folder)


def joint_engine(
    folder: Path, name: str = "joint", sampling: Sampling = PLAIN, slots: int = SLOTS, length: int = LENGTH
) -> JointEngine:
    """Two torch engines that are one, each with half the slots."""
    return JointEngine(
        name,
        [torch_engine(folder, f"{name}/{place}", sampling, slots // 2, length) for place in range(2)],
    )


@asynccontextmanager
async def started(engine: E, version: int = 0) -> AsyncIterator[E]:
    """The engine, started; closed in the end."""
    if isinstance(engine, VllmEngine | JointEngine) and not torch.cuda.is_available():
        fork_cores()
    try:
        await engine.start(version)
        yield engine
    finally:
        await engine.close()


async def load(engine: Engine, version: int, folder: Path) -> None:
    """Bring an engine to the weights in `folder`; what runs is aborted."""
    await engine.pause("abort")
    await engine.load(weights_at(version, folder))
    await engine.resume()
