"""An engine in another process, as the driver sees it.

Guarantees the protocol's contract with the engine behind an actor; orders and requests take effect in the
order in which they were given. When the actor's process dies every running submit raises `EngineDied`, as
soon as Ray reports it: one call to the actor is always pending, and its failure is the news. A lost
connection to a living actor is made anew, and no request is lost or run twice; if that takes too long, the
engine counts as dead.
"""

import asyncio
import logging
import math
import struct
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import zmq
import zmq.asyncio

from rljob_runtime.engines import channel
from rljob_runtime.engines.channel import encode_message
from rljob_runtime.engines.protocol import (
    EngineDied,
    FinishedText,
    LoadSnapshot,
    PauseMode,
    ProgressListener,
    Request,
    WeightRef,
)
from rljob_runtime.net.auth import ClientKeys, Endpoint, dial
from rljob_runtime.samples import Generation
from rljob_runtime.site.own_start import StartPart

_log = logging.getLogger(__name__)
# Not EVENT_CONNECTED, which comes before the keys are compared.
_LINKED = zmq.EVENT_HANDSHAKE_SUCCEEDED
_CUT = zmq.EVENT_DISCONNECTED
_DENIED = zmq.EVENT_HANDSHAKE_FAILED_AUTH
_CLOSE_SECONDS = 60.0


@dataclass(eq=False)
class _Submitted:
    request: Request
    result: "asyncio.Future[Generation]"
    aborted: bool = False
    """Whether the worker was told to end it early; a new connection repeats that."""


class RemoteEngine:
    """See the module's guarantees."""

    def __init__(
        self,
        name: str,
        actor: Any,
        keys: ClientKeys,
        start_seconds: float = 900.0,
        control_seconds: float = 600.0,
        contact_seconds: float = 30.0,
        on_usage: Callable[[float, Mapping[str, float]], None] | None = None,
    ) -> None:
        """`actor` is the handle of a `RolloutWorker`. An engine that takes longer than `start_seconds` to be
        ready or `control_seconds` for any other order, or that cannot be reached for `contact_seconds`,
        counts as dead. How long the engine may take to finish what it runs is for the caller of
        `pause("wait")` to say. `on_usage` is told what the worker used in the last so many seconds."""
        self.name = name
        self.stages = False
        self.start_parts: Sequence[StartPart] = ()
        self._actor = actor
        self._keys = keys
        self._start_seconds = start_seconds
        self._control_seconds = control_seconds
        self._contact_seconds = contact_seconds
        self._on_usage = on_usage
        self._token = ""
        self._submitted: dict[str, _Submitted] = {}
        """Requests whose results have not arrived, those that nobody awaits any more among them."""
        self._outgoing: list[Request] = []
        self._begun = 0
        """Requests submitted so far."""
        self._ended = 0
        """Results that have arrived so far."""
        self._progress = asyncio.Event()
        """Set when a result arrives, when a connection was made, and at the end."""
        self._linked = False
        self._watch: tuple[ProgressListener, float] | None = None
        """Who is told of progress, and after how many seconds each time."""
        self._death: str | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._socket: zmq.asyncio.Socket | None = None
        self._deadline: asyncio.TimerHandle | None = None

    async def begin(self, *what: Any) -> None:
        """Tell an actor of `early_worker` what it is, before `start`. Raises `EngineDied`."""
        await self._order("begin", *what, seconds=self._start_seconds)

    async def start(self, version: int) -> None:
        try:
            # The connection is made while the model loads.
            endpoint = await self._order("open", seconds=self._start_seconds)
            self._spawn(self._watch_actor())
            self._connect(endpoint)
            started = await self._order("start", version, seconds=self._start_seconds)
            self.stages, self.start_parts = started.stages, started.parts
            await self._until(lambda: self._linked, "no connection")
        except BaseException as error:
            self._die(f"engine {self.name}: it did not start: {error}")
            await self._disconnect()
            raise

    async def submit(self, request: Request) -> Generation:
        self._check_alive()
        if request.request_id in self._submitted:
            raise ValueError(f"engine {self.name}: request {request.request_id} was submitted before")
        result: asyncio.Future[Generation] = asyncio.get_running_loop().create_future()
        self._submitted[request.request_id] = _Submitted(request, result)
        # All requests of one turn of the loop travel in one message.
        if not self._outgoing:
            asyncio.get_running_loop().call_soon(self._flush)
        self._outgoing.append(request)
        self._begun += 1
        try:
            return await result
        except asyncio.CancelledError:
            # The entry stays until its result arrives: `pause` counts results.
            if self._death is None:
                self._send_abort(request.request_id)
            raise

    async def abort(self, request_id: str) -> None:
        self._check_alive()
        self._send_abort(request_id)

    async def pause(self, mode: PauseMode) -> None:
        self._flush()
        seconds = math.inf if mode == "wait" else self._control_seconds
        # Orders go through Ray and requests through ZeroMQ, and neither waits for the other. So the worker is
        # told how many requests to wait for, and tells how many results there are to wait for.
        ended = await self._order("pause", mode, self._begun, seconds=seconds)
        await self._until(lambda: self._ended >= ended, "results have not arrived")

    async def prepare(self, ref: WeightRef) -> None:
        await self._order("prepare", ref)

    async def load(self, ref: WeightRef) -> None:
        await self._order("load", ref)

    async def swap(self, ref: WeightRef) -> bool:
        swapped: bool = await self._order("swap", ref)
        return swapped

    async def resume(self) -> None:
        await self._order("resume")

    async def load_snapshot(self) -> LoadSnapshot:
        snapshot: LoadSnapshot = await self._order("load_snapshot")
        return snapshot

    def counters(self) -> Mapping[str, float]:
        """Nothing: the worker tells them with what it uses."""
        return {}

    def learn(self, texts: Sequence[FinishedText]) -> None:
        self._send(channel.Learn(tuple(texts)))

    def on_progress(self, listener: ProgressListener, seconds: float) -> None:
        self._watch = listener, seconds
        self._send(channel.Watch(seconds))

    async def close(self) -> None:
        """End the engine and its actor."""
        import ray

        try:
            if self._death is None:
                await self._order("close", seconds=min(_CLOSE_SECONDS, self._control_seconds))
        except EngineDied:
            pass  # It has ended already, or does not answer: the kill below ends it.
        except Exception as error:  # noqa: BLE001 - whatever it raised, it must not keep its accelerators
            _log.warning("engine %s did not close in order: %s: %s", self.name, type(error).__name__, error)
        self._die(f"engine {self.name}: it was closed")
        # Last: it ends the process at once, and the engine could not end processes of its own any more.
        ray.kill(self._actor)
        await self._disconnect()

    # Control

    async def _order(self, method: str, *arguments: Any, seconds: float | None = None) -> Any:
        from ray.exceptions import RayError, RayTaskError

        self._check_alive()
        seconds = self._control_seconds if seconds is None else seconds
        try:
            async with asyncio.timeout(seconds if math.isfinite(seconds) else None):
                return await getattr(self._actor, method).remote(*arguments)
        except RayTaskError as error:
            # Ray wraps what a method raised; the cause is the exception itself.
            if isinstance(error.cause, EngineDied):
                raise self._die(str(error.cause)) from None
            raise error.cause from None
        # Not only `RayActorError` tells of an actor's end: for one that Ray's memory monitor has killed it is
        # `OutOfMemoryError`.
        except RayError as error:
            raise self._die(self._actor_died(error)) from None
        except TimeoutError:
            raise self._die(f"engine {self.name}: {method} took longer than {seconds:g} s") from None

    async def _watch_actor(self) -> None:
        from ray.exceptions import RayError

        try:
            self._die(await self._actor.wait_closed.remote())
        except RayError as error:
            self._die(self._actor_died(error))

    def _actor_died(self, error: Exception) -> str:
        """The reason as a person gets it; Ray's own report is long and goes to the log."""
        _log.info("engine %s: %s", self.name, error)
        return f"engine {self.name}: its process has ended"

    def _die(self, why: str) -> EngineDied:
        """The engine is gone; returns what its callers get. The first reason stays."""
        if self._death is None:
            self._death = why
            for submitted in self._submitted.values():
                if not submitted.result.done():
                    submitted.result.set_exception(EngineDied(why))
            self._submitted.clear()
            self._outgoing.clear()
            self._progress.set()
            if self._deadline is not None:
                self._deadline.cancel()
        return EngineDied(self._death)

    def _check_alive(self) -> None:
        if self._death is not None:
            raise EngineDied(self._death)

    # Data

    def _connect(self, endpoint: Endpoint) -> None:
        self._socket = zmq.asyncio.Context.instance().socket(zmq.DEALER)
        # Before `dial`, so that no event of the connection is missed.
        self._monitor = self._socket.get_monitor_socket(_LINKED | _CUT | _DENIED)
        self._token = dial(self._socket, endpoint, self._keys)
        self._expect_contact()
        self._spawn(self._read(self._socket))
        self._spawn(self._watch_connection())

    async def _disconnect(self) -> None:
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._socket is not None:
            self._socket.disable_monitor()
            self._monitor.close()
            self._socket.close()
            self._socket = None

    async def _until(self, condition: Callable[[], bool], late: str) -> None:
        """Wait for what the connection brings."""
        try:
            async with asyncio.timeout(self._contact_seconds):
                while not condition():
                    self._check_alive()
                    self._progress.clear()
                    await self._progress.wait()
        except TimeoutError:
            raise self._die(f"engine {self.name}: {late} within {self._contact_seconds:g} s") from None

    def _flush(self) -> None:
        """Send what was submitted in this turn of the loop."""
        if self._outgoing:
            requests, self._outgoing = tuple(self._outgoing), []
            self._send(channel.Submit(requests))

    def _send_abort(self, request_id: str) -> None:
        if (submitted := self._submitted.get(request_id)) is not None:
            submitted.aborted = True
            # The request may not have been sent yet, and its abort must not overtake it.
            self._flush()
            self._send(channel.Abort((request_id,)))

    def _send(self, body: channel.Order) -> None:
        if self._socket is not None and self._death is None:
            self._socket.send_multipart([encode_message(channel.ToWorker(self._token, body))])

    async def _read(self, socket: zmq.asyncio.Socket) -> None:
        while True:
            message = channel.decode_from_worker(await socket.recv_multipart())
            if isinstance(message, channel.Refused):
                self._die(f"engine {self.name}: {message.why}")
                return
            if isinstance(message, channel.Progress):
                self._send(channel.ProgressRead())
                if self._watch is not None and self._death is None:
                    self._watch[0](message.tokens, message.prefilled)
                continue
            if isinstance(message, channel.Usage):
                if self._on_usage is not None:
                    self._on_usage(message.seconds, message.values)
                continue
            for generation in message.generations:
                self._arrive(generation.request_id, generation)
            for failure in message.failures:
                self._arrive(failure.request_id, failure)
            ended = [generation.request_id for generation in message.generations]
            ended += [failure.request_id for failure in message.failures]
            self._send(channel.Received(tuple(ended)))
            self._progress.set()

    def _arrive(self, request_id: str, outcome: Generation | channel.Failure) -> None:
        submitted = self._submitted.pop(request_id, None)
        # A result that was sent twice, over two connections, counts once.
        if submitted is None:
            return
        self._ended += 1
        # Its submitter was cancelled.
        if submitted.result.done():
            return
        if isinstance(outcome, Generation):
            submitted.result.set_result(outcome)
        else:
            kind = EngineDied if outcome.died else RuntimeError
            submitted.result.set_exception(kind(outcome.why))

    async def _watch_connection(self) -> None:
        while True:
            frame, _ = await self._monitor.recv_multipart()
            # A monitor event is two frames; the first has the 16-bit number of the event, in native byte
            # order, and a 32-bit value that is of no interest here.
            (event,) = struct.unpack_from("=H", frame)
            if event == _LINKED:
                self._have_contact()
                self._send_again()
            elif event == _DENIED:
                self._die(f"engine {self.name}: it does not know this client's key")
            else:
                self._expect_contact()

    def _send_again(self) -> None:
        """After a new connection: the worker ignores what it knows, and repeats results that got lost."""
        if self._watch is not None:
            self._send(channel.Watch(self._watch[1]))
        # These are among `_submitted`, all of which are sent.
        self._outgoing.clear()
        if self._submitted:
            self._send(channel.Submit(tuple(each.request for each in self._submitted.values())))
            aborted = [name for name, each in self._submitted.items() if each.aborted]
            if aborted:
                self._send(channel.Abort(tuple(aborted)))

    def _expect_contact(self) -> None:
        # Several connections may break in a row: the time runs from the first.
        if self._deadline is None:
            why = f"engine {self.name}: no connection for {self._contact_seconds:g} s"
            self._deadline = asyncio.get_running_loop().call_later(self._contact_seconds, self._die, why)

    def _have_contact(self) -> None:
        self._linked = True
        self._progress.set()
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._work_ended)

    def _work_ended(self, task: "asyncio.Task[None]") -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._die(f"engine {self.name}: {type(error).__name__}: {error}")
