"""The queue's client, on an asyncio loop; `blocking_client` has it for blocking code.

Guarantees:
- every call ends: with its result, or one of the errors below, each in one line. Its `timeout`, in seconds,
  counts while nothing of it moves: whenever bytes of the request or of its answer arrive at the other end
  (`wire.FRAME_BYTES` at a time), it begins anew. So it depends neither on the size of what is sent nor on
  the speed of the line;
- a call survives a lost connection, a lost answer and a restart of the server at the same address: it is sent
  again under the same number until it is answered, and is carried out once. What is still on its way is not
  sent a second time;
- a call that ended without its result leaves no groups on lease;
- groups stay on lease while the client lives, however long the caller takes.
"""

import asyncio
import struct
import uuid
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, TypeVar, cast

import msgspec
import zmq
import zmq.asyncio

from rljob_runtime.net.auth import ClientKeys, Endpoint, dial
from rljob_runtime.net.memory import reuse_freed_memory
from rljob_runtime.net.messages import Buffer
from rljob_runtime.queue import wire
from rljob_runtime.queue.wire import Stats

_T = TypeVar("_T")

_BEATS_PER_LEASE = 5
"""Heartbeats in the time of a lease, so that one that is late does not cost it."""
_LONGEST_BEAT = 1.0
"""Seconds between heartbeats, at most."""
_LINKED = zmq.EVENT_HANDSHAKE_SUCCEEDED
_DENIED = zmq.EVENT_HANDSHAKE_FAILED_AUTH
_BROKEN = zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL


class QueueError(RuntimeError):
    """A call to the queue did not get its result."""

    def __init__(self, why: str, timed_out: bool = False) -> None:
        super().__init__(why)
        self.timed_out = timed_out
        """Whether the call ended because its own `timeout` was over."""


class QueueTimeout(QueueError):
    """The queue is there, but what was waited for did not happen in time."""


class QueueUnavailable(QueueError):
    """The queue does not answer, or does not let this client in."""


class QueueRefused(QueueError):
    """The queue will not do this, however often it is asked."""


@dataclass(eq=False)
class _Call:
    messages: list[list[Buffer]]
    """The request: its parts, then itself."""
    answer: "asyncio.Future[tuple[wire.Answer, list[bytes]]]"
    timeout: float
    """Seconds that it may take while nothing of it moves."""
    began: float
    limit: asyncio.Timeout | None = None
    """The timer that ends it; None until it is awaited."""
    beats: int = 0
    """Heartbeats that were sent before it was sent the last time."""
    sending: "list[asyncio.Future[Any]]" = field(default_factory=list)
    """Of its messages those that ZeroMQ has not taken yet."""
    parts: wire.Parts = field(default_factory=wire.Parts)
    """The parts of its answer that have come."""

    def moved(self, now: float) -> None:
        """Bytes of it have arrived at the other end."""
        if self.limit is not None and not self.limit.expired():
            self.limit.reschedule(now + self.timeout)

    def stop_sending(self) -> None:
        """Take back what ZeroMQ has not taken yet."""
        for each in self.sending:
            each.cancel()


class AsyncQueueClient:
    """A producer or consumer on an asyncio loop. `open` it before use, or use it as a context manager."""

    def __init__(
        self, endpoint: Endpoint, keys: ClientKeys, name: str, patience_seconds: float = 30.0
    ) -> None:
        """`name` says in the server's books who this is; two clients may share one. A server that is silent
        for `patience_seconds` (it may be restarting) fails the calls that wait for it; where this process
        stood still meanwhile, they begin anew."""
        self._endpoint = endpoint
        self._keys = keys
        # Unlike that of any client before: one that begins anew numbers its requests from 1 again.
        self._id = f"{name}#{uuid.uuid4().hex[:12]}"
        self._patience = patience_seconds
        self._beat_seconds = min(_LONGEST_BEAT, endpoint.lease_seconds / _BEATS_PER_LEASE)
        self._next = 1
        self._open: dict[int, _Call] = {}
        self._abandoned: set[int] = set()
        self._abandonment_sent = True
        self._terms: dict[int, int] = {}
        """For each group on lease the term in which it was taken."""
        self._heard = float("-inf")
        self._trouble: str | None = None
        """Why there is no connection, as far as is known."""
        self._ended: str | None = "it was not opened"
        self._tasks: list[asyncio.Task[None]] = []
        self._beat: asyncio.Future[Any] | None = None
        self._beats = 0
        """Heartbeats sent so far."""

    async def open(self) -> None:
        """Begin to connect."""
        reuse_freed_memory()
        self._loop = asyncio.get_running_loop()
        # One context for the process: ending a client's own could block, where it is left to the collector.
        self._socket = zmq.asyncio.Context.instance().socket(zmq.DEALER)
        self._monitor = self._socket.get_monitor_socket(_LINKED | _DENIED | _BROKEN)
        self._token = dial(self._socket, self._endpoint, self._keys)
        self._ended = None
        for work in (self._read(), self._watch_connection(), self._keep_alive()):
            task = asyncio.create_task(work)
            task.add_done_callback(self._work_ended)
            self._tasks.append(task)

    async def close(self) -> None:
        """Leave: groups on lease are ready for others. Calls that wait fail."""
        if self._ended is not None and not self._tasks:
            return
        tasks, self._tasks = self._tasks, []
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._fail_all(QueueUnavailable(f"{self._where}: this client was closed"))
        self._ended = "this client was closed"
        bye = self._send([self._header(self._next, wire.Bye())])
        # Linger gives the last message to the network; it is lost without a connection.
        self._socket.set(zmq.LINGER, 500 if bye.done() else 0)
        self._socket.disable_monitor()
        self._monitor.close()
        self._socket.close()

    async def __aenter__(self) -> "AsyncQueueClient":
        await self.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def put(self, groups: Sequence[tuple[int, int, bytes]], timeout: float) -> list[bool]:
        """Store groups (uid, samples, frame), in order, waiting for room.

        Returns for each whether the queue has it: True also where it was put before, False where its uid is
        done or stands for another group. After an error some may be stored, and putting them again is
        harmless."""
        uids = tuple(group[0] for group in groups)
        frames = [group[2] for group in groups]
        for uid, _, frame in groups:
            if len(frame) > wire.MAX_GROUP_BYTES:
                limit = f"above the limit of {wire.MAX_GROUP_BYTES:,} bytes"
                raise ValueError(f"{self._where}: group {uid} has {len(frame):,} bytes, {limit}")
        body = wire.Put(uids, tuple(group[1] for group in groups), tuple(map(len, frames)))
        answer, _ = await self._call(body, timeout, f"no room for {_groups(uids)}", frames)
        return list(_expect(answer, wire.Stored).accepted)

    async def get(self, uids: Sequence[int], timeout: float) -> list[bytes]:
        """Lease exactly these groups, waiting until all are there; their frames, in the order of `uids`."""
        body = wire.Get(tuple(uids))
        answer, frames = await self._call(body, timeout, f"{_groups(uids)} not ready")
        groups = _expect(answer, wire.Groups)
        self._terms.update(dict.fromkeys(groups.uids, groups.term))
        return frames

    async def ack(self, uids: Sequence[int], timeout: float = 60.0) -> list[bool]:
        """These groups, which this client has on lease, were trained; for each whether it was not done
        before. Raises `QueueRefused` when the job went back to a checkpoint after they were taken."""
        missing = [uid for uid in uids if uid not in self._terms]
        if missing:
            raise ValueError(f"{_groups(missing)}: not taken by this client")
        fresh: dict[int, bool] = {}
        for term in sorted({self._terms[uid] for uid in uids}):
            part = tuple(uid for uid in uids if self._terms[uid] == term)
            answer, _ = await self._call(wire.Ack(part, term), timeout, "no answer to an acknowledgement")
            fresh.update(zip(part, _expect(answer, wire.Acked).fresh, strict=True))
        for uid in uids:
            self._terms.pop(uid, None)
        return [fresh[uid] for uid in uids]

    async def reset(self, term: int, watermark: int, ahead: Iterable[int], timeout: float = 60.0) -> int:
        """Say which groups are done: all below `watermark`, and those in `ahead`.

        With a `term` above the queue's the job has gone back to a checkpoint: the queue is emptied, and what
        was taken before cannot be acknowledged. With the queue's own term this adds to what is done. Returns
        how many groups were thrown away."""
        body = wire.Reset(term, watermark, tuple(ahead))
        answer, _ = await self._call(body, timeout, "no answer to a reset")
        return _expect(answer, wire.Counted).count

    async def stats(self, timeout: float = 60.0) -> Stats:
        """The queue's counters."""
        answer, _ = await self._call(wire.GetStats(), timeout, "no answer to a question for its counters")
        return _expect(answer, wire.StatsReply).stats

    # Calls

    async def _call(
        self, body: wire.Body, timeout: float, what: str, groups: Sequence[bytes] = ()
    ) -> tuple[wire.Answer, list[bytes]]:
        """The answer, and the groups that came with it."""
        if self._ended is not None:
            raise QueueUnavailable(f"{self._where}: {self._ended}")
        self._send_abandonment()
        number, self._next = self._next, self._next + 1
        answer: asyncio.Future[tuple[wire.Answer, list[bytes]]] = self._loop.create_future()
        call = self._open[number] = _Call([], answer, timeout, self._loop.time())

        def head(part: wire.Part | None, parts: int) -> bytes:
            return self._header(number, body if part is None else part, parts)

        call.messages = wire.messages(head, groups)
        self._send_call(call)
        result = None
        try:
            async with asyncio.timeout(timeout) as call.limit:
                result = await answer
        except TimeoutError:
            # A server that was heard lately is there, and what was waited for has not happened.
            if self._loop.time() - self._heard > 2 * self._beat_seconds:
                why = f"{self._where}: no answer within {timeout:g} s{self._why}"
                raise QueueUnavailable(why, timed_out=True) from None
            raise QueueTimeout(f"{self._where}: {what} within {timeout:g} s", timed_out=True) from None
        finally:
            self._open.pop(number, None)
            if result is None:
                # Also where the caller was cancelled: what the server leases for this call is to come back.
                call.stop_sending()
                self._abandon(number)
        if isinstance(result[0], wire.Refused):
            raise QueueRefused(f"{self._where}: {result[0].why}")
        return result

    def _send_call(self, call: _Call) -> None:
        call.stop_sending()
        call.beats = self._beats
        # ZeroMQ has taken a message whose future is done; the others wait for a connection or for room.
        call.sending = [sent for message in call.messages if not (sent := self._send(message)).done()]

    def _abandon(self, number: int) -> None:
        """Tell the server soon, and before anything else, that nobody waits for this answer."""
        self._abandoned.add(number)
        if self._abandonment_sent:
            self._abandonment_sent = False
            self._loop.call_soon(self._send_abandonment)

    def _send_abandonment(self) -> None:
        if not self._abandonment_sent and self._ended is None:
            self._send_beat()

    def _send_beat(self) -> None:
        self._abandonment_sent = True
        self._beats += 1
        # The server names those of the open requests that it does not know, and ends the abandoned ones.
        body = wire.Heartbeat(self._beats, tuple(self._open), tuple(self._abandoned))
        self._beat = self._send([self._header(self._next, body)])

    def _send(self, message: Sequence[Buffer]) -> "asyncio.Future[Any]":
        """Messages leave in the order of these calls. Large frames are not copied."""
        return cast("asyncio.Future[Any]", self._socket.send_multipart(message, copy=False))

    def _header(self, number: int, body: wire.Body, parts: int = 0) -> bytes:
        # Requests are opened in the order of their numbers: the first is the smallest.
        oldest = min(next(iter(self._open), number), min(self._abandoned, default=number))
        return wire.encode(wire.Request(self._id, self._token, number, oldest, body, parts))

    # Background work

    async def _read(self) -> None:
        while True:
            frames = await self._socket.recv_multipart(copy=False)
            self._heard = self._loop.time()
            reply, payload = wire.decode_reply([frame.buffer for frame in frames])
            call = self._open.get(reply.number)
            match reply.body:
                case wire.Alive():
                    self._learn(reply.body)
                case wire.Refused(kind, why) if reply.number == 0 or kind == "token":
                    self._fail_all(QueueRefused(f"{self._where}: {why}"))
                case wire.PartTaken() if call is not None:
                    call.moved(self._heard)
                case wire.Part(index) if call is not None:
                    call.parts.take(index, payload[0])
                    call.moved(self._heard)
                case _ if call is not None and not call.answer.done():
                    whole = call.parts.whole(reply.parts, payload)
                    # Where some of its parts were lost with a connection, the server sends it again over the
                    # next one.
                    if whole is not None:
                        call.answer.set_result((reply.body, wire.unpack_groups(reply.body, whole)))

    def _learn(self, alive: wire.Alive) -> None:
        """Send again what the server did not know when a heartbeat arrived."""
        self._abandoned.difference_update(alive.abandoned)
        for number in alive.unknown:
            call = self._open.get(number)
            # A request that was sent after that heartbeat had not arrived then, and is on its way.
            if call is not None and call.beats < alive.beat:
                self._send_call(call)

    async def _watch_connection(self) -> None:
        while True:
            frame, _ = await self._monitor.recv_multipart()
            (event,) = struct.unpack_from("=H", frame)
            if event == _LINKED:
                self._trouble = None
                # Its answer names the requests that were lost with the connection before.
                self._send_beat()
            elif event == _DENIED:
                # ZeroMQ does not try again after this.
                self._ended = "it does not know this client's key"
                self._fail_all(QueueUnavailable(f"{self._where}: {self._ended}"))
            else:
                self._trouble = (
                    "no agreement on a secure connection: is its public key the one we were given?"
                )

    async def _keep_alive(self) -> None:
        awake = float("-inf")
        while True:
            # Without a connection one heartbeat waits to be sent, and no second one behind it.
            if self._beat is None or self._beat.done():
                self._send_beat()
            asleep = self._loop.time()
            await asyncio.sleep(self._beat_seconds)
            now = self._loop.time()
            # This process stood still, and has neither asked nor listened: the silence is its own.
            if now - asleep > 2 * self._beat_seconds:
                awake = now
            for call in list(self._open.values()):
                if now - max(self._heard, call.began, awake) > self._patience and not call.answer.done():
                    call.answer.set_exception(
                        QueueUnavailable(f"{self._where}: no answer for {self._patience:g} s{self._why}")
                    )

    def _work_ended(self, task: "asyncio.Task[None]") -> None:
        if not task.cancelled():
            self._ended = f"the client failed: {task.exception()!r}"
            self._fail_all(QueueUnavailable(f"{self._where}: {self._ended}"))

    def _fail_all(self, error: QueueError) -> None:
        for call in self._open.values():
            if not call.answer.done():
                call.answer.set_exception(error)

    @property
    def _where(self) -> str:
        return f"queue at {self._endpoint.address}"

    @property
    def _why(self) -> str:
        return f": {self._trouble}" if self._trouble else ""


def _expect(answer: wire.Answer, kind: type[_T]) -> _T:
    if not isinstance(answer, kind):
        raise msgspec.DecodeError(f"the queue answered with {type(answer).__name__}, not {kind.__name__}")
    return answer


def _groups(uids: Sequence[int]) -> str:
    few = ", ".join(map(str, uids[:5])) + (", ..." if len(uids) > 5 else "")
    return f"group {few}" if len(uids) == 1 else f"groups {few}"
