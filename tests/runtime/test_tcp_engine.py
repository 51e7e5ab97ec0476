"""An engine that fetches its weights: when it does so, and what stays."""

import os
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import pytest_asyncio

from rljob_runtime.engines.fake import FakeEngine
from rljob_runtime.engines.fetching import FetchingEngine, FetchSpec
from rljob_runtime.engines.protocol import Engine, WeightRef
from rljob_runtime.net.auth import new_keys
from rljob_runtime.weights.shm import WeightsGone
from rljob_runtime.weights.tcp_server import FolderServer
from tests.support.runtime.engines import fake_engine, started
from tests.support.runtime.tiny_models import perturbed, tiny_model

SERVER_KEYS, CLIENT_KEYS = new_keys()


@pytest.fixture
def versions(tmp_path: Path) -> Path:
    """A folder of the versions v0 (the model itself), v1 and v2."""
    base = tiny_model(tmp_path / "versions" / "v0", tied=False)
    for version in (1, 2):
        perturbed(base, base.with_name(f"v{version}"), version)
    return base.parent


@pytest.fixture
def server(versions: Path) -> Iterator[FolderServer]:
    server = FolderServer("tcp://127.0.0.1:0", SERVER_KEYS, lambda name: versions / name)
    yield server
    server.close()


@pytest_asyncio.fixture
async def engine(server: FolderServer, versions: Path, tmp_path: Path) -> AsyncIterator[FetchingEngine]:
    fetch = FetchSpec(f"test-{os.getpid()}-{tmp_path.name}", SERVER_KEYS.public, CLIENT_KEYS)
    async with started(FetchingEngine("fetching", fake_engine, versions / "v0", fetch)) as engine:
        yield engine


def ref(server: FolderServer, version: int) -> WeightRef:
    return WeightRef(version, "tcp", f"{server.endpoint.address}/v{version}")


def kept(engine: FetchingEngine) -> list[str]:
    """Names of the versions that are on this machine."""
    assert engine._store is not None
    return sorted(path.name for path in engine._store.root.glob("v*"))


async def load(engine: FetchingEngine, wanted: WeightRef) -> int:
    """The engine's version after it was to load one."""
    await engine.pause("keep")
    await engine.load(wanted)
    await engine.resume()
    return (await engine.load_snapshot()).version


async def test_a_prepared_version_is_loaded_without_the_server(
    engine: FetchingEngine, server: FolderServer
) -> None:
    await engine.prepare(ref(server, 1))
    assert not (await engine.load_snapshot()).paused
    assert (await engine.load_snapshot()).version == 0
    assert kept(engine) == ["v1"]
    server.close()
    assert await load(engine, ref(server, 1)) == 1
    assert kept(engine) == []


async def test_a_version_that_was_not_prepared_is_fetched(
    engine: FetchingEngine, server: FolderServer
) -> None:
    await engine.prepare(ref(server, 1))
    assert await load(engine, ref(server, 2)) == 2
    assert kept(engine) == []


async def test_a_version_that_is_gone_leaves_the_engine_as_it_is(
    engine: FetchingEngine, server: FolderServer
) -> None:
    with pytest.raises(WeightsGone):
        await engine.prepare(ref(server, 9))
    assert await load(engine, ref(server, 1)) == 1


class SwappingEngine(FakeEngine):
    """Goes on with a version without a pause where it has what `prepare` brought."""

    prepared: WeightRef | None = None

    async def prepare(self, ref: WeightRef) -> None:
        self.prepared = ref

    async def swap(self, ref: WeightRef) -> bool:
        if self.prepared != ref:
            return False
        self.version = ref.version
        return True


async def test_a_version_that_the_engine_inside_goes_on_with_is_kept_no_longer(
    versions: Path, server: FolderServer, tmp_path: Path
) -> None:
    fetch = FetchSpec(f"test-{os.getpid()}-{tmp_path.name}", SERVER_KEYS.public, CLIENT_KEYS)

    def make(folder: Path) -> Engine:
        return SwappingEngine("inside", lambda request: 1, model_folder=folder)

    async with started(FetchingEngine("fetching", make, versions / "v0", fetch)) as engine:
        assert not await engine.swap(ref(server, 1)), "it is not here"
        await engine.prepare(ref(server, 1))
        assert not await engine.swap(ref(server, 2))
        assert kept(engine) == ["v1"]
        assert await engine.swap(ref(server, 1))
        assert (await engine.load_snapshot()).version == 1
        assert kept(engine) == []
