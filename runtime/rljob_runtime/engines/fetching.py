"""An engine that fetches its model and its weights over the network, around one that loads folders.

Guarantees the engine contract of the one inside. A version is fetched into this machine's shared memory (or
its disk where that is too small) while the engine generates, loaded from there, and removed. A version that
cannot be fetched raises `WeightsGone`, with the old weights in place.
"""

import asyncio
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import msgspec

from rljob_runtime.engines import factory
from rljob_runtime.engines.factory import EngineSpec
from rljob_runtime.engines.protocol import (
    Engine,
    EngineDied,
    FinishedText,
    LoadSnapshot,
    PauseMode,
    ProgressListener,
    Request,
    WeightRef,
)
from rljob_runtime.net.auth import Endpoint
from rljob_runtime.net.keys import ClientSide, client_keys
from rljob_runtime.samples import Generation
from rljob_runtime.site.own_start import OwnStart, StartPart
from rljob_runtime.site.scratch import PREFIX
from rljob_runtime.weights.model_source import ModelSource, local_copy
from rljob_runtime.weights.shm import WeightsGone, WeightStore, choose_root
from rljob_runtime.weights.tcp_fetch import Damaged, FolderClient
from rljob_runtime.weights.transport import FETCHED


class FetchSpec(msgspec.Struct, frozen=True):
    """Where an engine fetches from, in MessagePack on its way to the process."""

    run_id: str
    """Unique to this start of the engine; names its folder in shared memory."""
    server_public: str
    """Public key (Z85) of the trainer's server."""
    keys: ClientSide
    """What proves to the server that this engine belongs to the job."""
    model: ModelSource | None = None
    """Where the initial model comes from; None where its folder is on this machine."""


def make(name: str, spec: bytes, fetch: bytes) -> Engine:
    """The engine of `spec` (an `EngineSpec`), not started, fetching as `fetch` (a `FetchSpec`) says."""
    wanted = msgspec.msgpack.decode(spec, type=EngineSpec)

    def build(model_folder: Path) -> Engine:
        placed = msgspec.structs.replace(wanted, model_folder=str(model_folder))
        return factory.make(name, msgspec.msgpack.encode(placed))

    sources = msgspec.msgpack.decode(fetch, type=FetchSpec)
    return FetchingEngine(name, build, Path(wanted.model_folder), sources)


class FetchingEngine:
    """See the module's guarantees."""

    def __init__(
        self, name: str, build: Callable[[Path], Engine], model_folder: Path, fetch: FetchSpec
    ) -> None:
        """`build` makes the engine inside from a model's folder."""
        self.name = name
        self._build = build
        self._model_folder = model_folder
        self._fetch = fetch
        self._engine: Engine | None = None
        self._start = OwnStart()
        self._store: WeightStore | None = None
        self._fetched: tuple[WeightRef, Path] | None = None
        """The version that is on this machine and not loaded yet, and where."""

    async def start(self, version: int) -> None:
        folder = self._model_folder
        if self._fetch.model is not None:
            try:
                with self._start.part("fetch"):
                    folder = await asyncio.to_thread(local_copy, self._fetch.model)
            except (WeightsGone, Damaged, OSError) as error:
                raise EngineDied(f"engine {self.name}: the model was not fetched: {error}") from error
        self._engine = self._build(folder)
        await self._engine.start(version)
        weights = sum(path.stat().st_size for path in folder.glob("*.safetensors"))
        # Room for two versions: the one that is fetched, and one that an engine that was killed left behind.
        disk = Path(tempfile.gettempdir()) / f"{PREFIX}{self._fetch.run_id}"
        root = choose_root(self._fetch.run_id, disk, 2, weights)
        self._store = await asyncio.to_thread(WeightStore, root, 1)

    @property
    def start_parts(self) -> Sequence[StartPart]:
        return [*self._start.parts, *self._inner.start_parts]

    @property
    def stages(self) -> bool:
        return self._inner.stages

    async def submit(self, request: Request) -> Generation:
        return await self._inner.submit(request)

    async def abort(self, request_id: str) -> None:
        await self._inner.abort(request_id)

    async def pause(self, mode: PauseMode) -> None:
        await self._inner.pause(mode)

    async def prepare(self, ref: WeightRef) -> None:
        """Raises `WeightsGone`; `EngineDied`, the engine being gone, where what arrives is damaged."""
        if ref.transport in FETCHED:
            ref = _on_disk(ref, await self._on_this_machine(ref))
        await self._inner.prepare(ref)

    async def load(self, ref: WeightRef) -> None:
        if ref.transport not in FETCHED:
            await self._inner.load(ref)
            return
        folder = await self._on_this_machine(ref)
        try:
            await self._inner.load(_on_disk(ref, folder))
        finally:
            # Also where it was not loaded: what is tried again is fetched again, whole.
            await self._drop()

    async def swap(self, ref: WeightRef) -> bool:
        if ref.transport not in FETCHED:
            return await self._inner.swap(ref)
        if self._fetched is None or self._fetched[0] != ref:
            return False
        swapped = await self._inner.swap(_on_disk(ref, self._fetched[1]))
        if swapped:
            await self._drop()
        return swapped

    async def resume(self) -> None:
        await self._inner.resume()

    async def load_snapshot(self) -> LoadSnapshot:
        return await self._inner.load_snapshot()

    def learn(self, texts: Sequence[FinishedText]) -> None:
        self._inner.learn(texts)

    def counters(self) -> Mapping[str, float]:
        return self._inner.counters()

    def on_progress(self, listener: ProgressListener, seconds: float) -> None:
        self._inner.on_progress(listener, seconds)

    async def close(self) -> None:
        if self._engine is not None:
            await self._engine.close()
        if self._store is not None:
            self._store.close()

    @property
    def _inner(self) -> Engine:
        if self._engine is None:
            raise RuntimeError(f"engine {self.name}: not started")
        return self._engine

    @property
    def _open_store(self) -> WeightStore:
        if self._store is None:
            raise RuntimeError(f"engine {self.name}: not started")
        return self._store

    async def _on_this_machine(self, ref: WeightRef) -> Path:
        """The folder with the weights of `ref` on this machine, fetched unless it is there. The version that
        was fetched before is removed first, to make room."""
        # `prepare` has brought it here already.
        if self._fetched is not None and self._fetched[0] == ref:
            return self._fetched[1]
        await self._drop()
        try:
            folder = await asyncio.to_thread(self._fetch_version, ref)
        except (Damaged, OSError) as error:
            await self.close()
            raise EngineDied(f"engine {self.name}: version {ref.version}: {error}") from error
        self._fetched = ref, folder
        return folder

    async def _drop(self) -> None:
        """Remove the version that was fetched, if there is one."""
        if self._fetched is not None:
            folder = self._fetched[1]
            self._fetched = None
            await asyncio.to_thread(self._open_store.drop, folder)

    def _fetch_version(self, ref: WeightRef) -> Path:
        """Fetch a version into the store and return its folder. Blocking. Raises `WeightsGone`, `Damaged`,
        `OSError`."""
        address, _, name = ref.location.rpartition("/")
        server = Endpoint(address, self._fetch.server_public)
        with FolderClient(server, client_keys(self._fetch.keys)) as client:
            return self._open_store.publish(ref.version, lambda folder: client.fetch(name, folder))


def _on_disk(ref: WeightRef, folder: Path) -> WeightRef:
    """A version that was fetched, for the engine inside."""
    return WeightRef(ref.version, "shm", str(folder))
