"""A process that hosts one engine: a Ray actor for control, a ZeroMQ socket for requests and their results.

Guarantees: each request is begun once and its result kept until the client has it, whatever happens to the
connection; an unreadable or unauthorized message is answered with the reason and counted; when the engine
dies every request ends with that reason, and so does `wait_closed`.
"""

import asyncio
import importlib
import logging
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Coroutine, Mapping
from pathlib import Path
from typing import Any

import msgspec
import zmq
import zmq.asyncio

from rljob_runtime.devices import Accelerator
from rljob_runtime.engines import channel
from rljob_runtime.engines.channel import Failure, encode_message
from rljob_runtime.engines.protocol import Engine, EngineDied, LoadSnapshot, PauseMode, Request, WeightRef
from rljob_runtime.net.auth import Endpoint, Gate
from rljob_runtime.net.keys import ServerSide, server_keys
from rljob_runtime.samples import Generation
from rljob_runtime.site import process_log
from rljob_runtime.site.own_start import PROCESS, OwnStart, StartPart, created
from rljob_runtime.site.process_use import ProcessUse, UseSampler, meter_of

_log = logging.getLogger(__name__)
_GENERATE = "generate"
"""Name of the tasks that run requests."""


class Started(msgspec.Struct, frozen=True):
    """What a worker tells of its engine when it is up."""

    stages: bool
    """As `Engine.stages`."""
    parts: tuple[StartPart, ...]
    """Where the time of the start went, that of the worker's process included."""


class RolloutWorker:
    """See the module's guarantees; `start_worker` makes a Ray actor of it."""

    def __init__(
        self,
        factory: str,
        arguments: dict[str, Any],
        name: str,
        address: str,
        keys: ServerSide,
        sampled: Accelerator | None = None,
        log: Path | None = None,
    ) -> None:
        """`factory` is the import path "module:function" of what makes the engine, called with `name` and
        `arguments`; `address` is where to listen: tcp://HOST:PORT (port 0 takes a free one) or ipc://PATH.
        `sampled`: whoever watches is told what this process, those it starts and its accelerators of this
        kind use; None: it is not. `log`: see `process_log.begin`."""
        process_log.begin(log)
        self._start = OwnStart()
        self._start.process(PROCESS, created())
        self.refused: Counter[str] = Counter()
        """Messages that were refused, by kind."""
        # What makes an engine imports what it needs; the engine itself is made by `start`.
        with self._start.part("imports"):
            self._engine = load_factory(factory)(name=name, **arguments)
        self._serves = False
        """Whether the engine is up."""
        self._name = name
        self._address = address
        self._keys = server_keys(keys)
        self._running: dict[str, bytes] = {}
        """Requests that have not ended, each with the connection its result goes to."""
        self._results: dict[str, Generation | Failure] = {}
        """Requests that have ended and whose results the client has not confirmed (`channel.Received`)."""
        self._begun = 0
        self._ended = 0
        self._arrival = asyncio.Event()
        """Set when requests arrive."""
        self._watcher: bytes | None = None
        """The connection that is told of progress."""
        self._watch_seconds = 0.0
        """How often it is told."""
        self._unread = False
        """Whether progress was sent that the watcher has not confirmed."""
        self._sampled = sampled
        self._sampler: UseSampler | None = None
        self._outbox: defaultdict[bytes, list[str]] = defaultdict(list)
        self._tasks: set[asyncio.Task[None]] = set()
        self._gate: Gate | None = None
        self._closed: asyncio.Future[str] | None = None

    # Control

    async def open(self) -> Endpoint:
        """Begin to listen, if it does not already. Raises `AddressError` where it cannot."""
        if self._gate is None:
            # A context of its own: a gate has an authenticator, and a context has room for one.
            context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
            self._gate = Gate(context, self._address, self._keys, channel.MAX_MESSAGE_BYTES)
            self._socket = zmq.asyncio.Socket(self._gate.socket)
            self._closed = asyncio.get_running_loop().create_future()
            self._spawn(self._serve(self._gate))
        return Endpoint(self._gate.address, self._keys.public)

    async def start(self, version: int) -> Started:
        """Start the engine; once."""
        began = time.monotonic()
        await self._engine.start(version)
        self._serves = True
        self._watch()
        self._sample()
        _log.info("engine %s serves after %.0f s", self._name, time.monotonic() - began)
        self._start.add(self._engine.start_parts)
        return Started(self._engine.stages, self._start.parts)

    async def pause(self, mode: PauseMode, begun: int) -> int:
        """Pause once `begun` requests have arrived, counted from the start: those submitted before. Returns
        how many have ended; their results are on the way."""
        # This order came through Ray and may have overtaken requests, which come through ZeroMQ.
        while self._begun < begun:
            self._arrival.clear()
            await self._arrival.wait()
        running = [task for task in self._tasks if task.get_name() == _GENERATE]
        # Those that begin in this turn of the loop reach the engine in the next one. After the pause they
        # would wait for its end.
        await asyncio.sleep(0)
        await self._engine.pause(mode)
        # Their tasks count the results a moment after the engine has ended them.
        if mode == "abort" and running:
            await asyncio.wait(running)
        return self._ended

    async def prepare(self, ref: WeightRef) -> None:
        await self._engine.prepare(ref)

    async def load(self, ref: WeightRef) -> None:
        await self._engine.load(ref)

    async def swap(self, ref: WeightRef) -> bool:
        return await self._engine.swap(ref)

    async def resume(self) -> None:
        await self._engine.resume()

    async def load_snapshot(self) -> LoadSnapshot:
        return await self._engine.load_snapshot()

    async def close(self) -> None:
        if self._sampler is not None:
            self._sampler.stop()
        await self._engine.close()
        self._close(f"engine {self._name}: it was closed")

    async def wait_closed(self) -> str:
        """Wait until the engine has ended; why it has."""
        if self._closed is None:
            raise RuntimeError(f"engine {self._name}: not opened")
        # Shielded: the future is shared, and a cancelled caller must not cancel it for the others.
        return await asyncio.shield(self._closed)

    # Data

    async def _serve(self, gate: Gate) -> None:
        while True:
            identity, *frames = await self._socket.recv_multipart()
            try:
                message = channel.decode_to_worker(frames)
            except msgspec.DecodeError as error:
                self._refuse(identity, "malformed", f"unreadable message: {error}")
                continue
            if not gate.token_fits(message.token):
                self._refuse(identity, "token", "the token does not fit this engine")
                continue
            self._take(identity, message.body)

    def _take(self, identity: bytes, body: channel.Order) -> None:
        match body:
            case channel.Submit(requests):
                for request in requests:
                    self._begin(identity, request)
                self._arrival.set()
            case channel.Abort(request_ids):
                for request_id in request_ids:
                    # In a task: an abort may take a round trip to the engine core, and reading goes on.
                    self._spawn(self._abort(request_id))
            case channel.Received(request_ids):
                for request_id in request_ids:
                    self._results.pop(request_id, None)
            case channel.Watch(seconds):
                self._watcher, self._watch_seconds, self._unread = identity, seconds, False
                self._watch()
            case channel.ProgressRead():
                self._unread = False
            case channel.Learn(texts):
                # An engine that is not up runs nothing that it could draft for.
                if self._serves:
                    self._engine.learn(texts)

    def _begin(self, identity: bytes, request: Request) -> None:
        known = request.request_id in self._running
        # A new connection has a new identity: the result goes to the one that asked last.
        self._running[request.request_id] = identity
        if request.request_id in self._results:
            self._post(request.request_id)
        elif not known:
            self._begun += 1
            self._spawn(self._generate(request), _GENERATE)

    async def _generate(self, request: Request) -> None:
        result: Generation | Failure
        try:
            result = await self._engine.submit(request)
        except EngineDied as error:
            result = Failure(request.request_id, str(error), died=True)
            self._close(str(error))
        except Exception as error:  # noqa: BLE001 - whatever is wrong with a request, its submitter learns of it
            why = f"engine {self._name}: request {request.request_id}: {type(error).__name__}: {error}"
            result = Failure(request.request_id, why, died=False)
        self._results[request.request_id] = result
        self._ended += 1
        self._post(request.request_id)

    async def _abort(self, request_id: str) -> None:
        try:
            await self._engine.abort(request_id)
        except Exception as error:
            # An engine that is not up has nothing to abort, and may not be able to look for it.
            if self._serves:
                raise
            _log.info("engine %s is not up, and has nothing to abort: %s", self._name, error)

    def _post(self, request_id: str) -> None:
        """Send a result, together with all that end in the same turn of the loop."""
        if not self._outbox:
            asyncio.get_running_loop().call_soon(self._flush)
        self._outbox[self._running.pop(request_id)].append(request_id)

    def _flush(self) -> None:
        outbox, self._outbox = self._outbox, defaultdict(list)
        for identity, request_ids in outbox.items():
            # The client may have said in this very turn that it has one of them.
            results = [self._results[name] for name in request_ids if name in self._results]
            if not results:
                continue
            generations = tuple(result for result in results if isinstance(result, Generation))
            failures = tuple(result for result in results if isinstance(result, Failure))
            self._send(identity, channel.Results(generations, failures))

    def _watch(self) -> None:
        # A connection may ask for it before the engine is up.
        if self._serves and self._watcher is not None:
            self._engine.on_progress(self._tell_progress, self._watch_seconds)

    def _tell_progress(self, tokens: Mapping[str, int], prefilled: int) -> None:
        if self._watcher is not None and not self._unread:
            self._unread = True
            self._send(self._watcher, channel.Progress(dict(tokens), prefilled))

    def _sample(self) -> None:
        if self._sampled is None:
            return
        loop = asyncio.get_running_loop()

        def tell(began: float, seconds: float, values: Mapping[str, float]) -> None:
            # The loop of a process that ends may be closed by now.
            if not loop.is_closed():
                loop.call_soon_threadsafe(self._tell_usage, seconds, values)

        # vLLM's engine core computes on them, and this process does not.
        self._sampler = UseSampler(ProcessUse(meter_of(self._sampled, computes=False)), tell)
        self._sampler.start()

    def _tell_usage(self, seconds: float, values: Mapping[str, float]) -> None:
        if self._watcher is not None:
            self._send(self._watcher, channel.Usage(seconds, {**values, **self._engine.counters()}))

    def _refuse(self, identity: bytes, kind: str, why: str) -> None:
        self.refused[kind] += 1
        _log.warning("engine %s refused a message: %s (%d so far)", self._name, why, self.refused[kind])
        self._send(identity, channel.Refused(why))

    def _send(self, identity: bytes, message: channel.FromWorker) -> None:
        # In a task, since its callers cannot wait; tasks begin in the order of these calls.
        self._spawn(self._deliver([identity, encode_message(message)]))

    async def _deliver(self, frames: list[bytes]) -> None:
        try:
            await self._socket.send_multipart(frames)
        except zmq.ZMQError as error:
            # The connection is gone: the client asks again when it has another.
            if error.errno != zmq.EHOSTUNREACH:
                raise

    def _spawn(self, work: Coroutine[Any, Any, None], name: str | None = None) -> None:
        task = asyncio.get_running_loop().create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._work_ended)

    def _work_ended(self, task: "asyncio.Task[None]") -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._close(f"engine {self._name}: {type(error).__name__}: {error}")

    def _close(self, why: str) -> None:
        if self._closed is not None and not self._closed.done():
            _log.info("%s", why)
            self._closed.set_result(why)


def load_factory(path: str) -> Callable[..., Engine]:
    """The function that the path "module:function" names. Raises `ValueError` where there is none."""
    module, _, function = path.partition(":")
    try:
        factory: Callable[..., Engine] = getattr(importlib.import_module(module), function)
    except (ImportError, AttributeError, ValueError) as error:
        raise ValueError(f'cannot make an engine with "{path}": {error}') from error
    return factory


def start_worker(
    factory: str,
    arguments: dict[str, Any],
    name: str,
    address: str,
    keys: ServerSide,
    sampled: Accelerator | None = None,
    log: Path | None = None,
    **options: Any,
) -> Any:
    """A handle of an actor with a `RolloutWorker`; `options` are Ray's for actors (resources, ...)."""
    import ray

    return ray.remote(**options)(RolloutWorker).remote(factory, arguments, name, address, keys, sampled, log)
