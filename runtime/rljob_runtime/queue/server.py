"""The queue's server: a thread that applies the broker's rules to what its clients send.

Guarantees: every readable request is answered, once its outcome is known; an unreadable, unauthorized or
oversized one is answered with the reason and counted; none of them ends the server. A request that comes
again gets its first answer again. A slow client delays nobody. The thread sleeps until a message comes or a
client is overdue.
"""

import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import msgspec
import zmq

from rljob_runtime.net.auth import Endpoint, Gate, ServerKeys
from rljob_runtime.net.memory import reuse_freed_memory
from rljob_runtime.queue import wire
from rljob_runtime.queue.broker import Broker, Granted, GroupTooLarge, Impossible, Outcome, Stored, WrongTerm
from rljob_runtime.queue.wire import QueuedGroup

_MESSAGES_PER_TURN = 256
_MAX_OPEN = 100_000
"""Most requests of one client that may be unanswered, or whose answers it may not have confirmed."""


class _Answer(NamedTuple):
    """What a request came to, kept in case that the client did not receive it."""

    message: tuple[bytes, ...] = ()
    """Empty where nobody waits for it."""
    leased: tuple[int, ...] = ()
    """The groups that the client holds once it has received it."""


@dataclass
class _Session:
    """A client, as the server knows it."""

    identity: bytes
    """Where its newest message came from."""
    oldest: int = 1
    pending: set[int] = field(default_factory=set)
    """Requests without an outcome yet."""
    answers: dict[int, _Answer] = field(default_factory=dict)
    """Of the requests from `oldest` on that are not pending."""

    def forget_below(self, oldest: int) -> None:
        """The client has the answers to all requests below `oldest`."""
        if oldest > self.oldest:
            self.oldest = oldest
            for number in [number for number in self.answers if number < oldest]:
                del self.answers[number]


class QueueServer:
    """See the module's guarantees."""

    def __init__(
        self,
        broker: Broker,
        address: str,
        keys: ServerKeys,
        max_group_bytes: int = wire.MAX_GROUP_BYTES,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Listens from here on; `start` begins to serve. Raises `AddressError` where it cannot listen.

        A group above `max_group_bytes` is refused; a frame far above it, and above what groups share, ends
        its connection."""
        self.failure: str | None = None
        """Why the thread ended, if it was not stopped."""
        self._broker = broker
        self._clock = clock
        self._max_group_bytes = max_group_bytes
        self._sessions: dict[str, _Session] = {}
        self._refused: Counter[str] = Counter()
        reuse_freed_memory()
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        try:
            self._gate = Gate(self._context, address, keys, 2 * max(max_group_bytes, wire.FRAME_BYTES))
        except BaseException:
            self._context.term()
            raise
        self.endpoint = Endpoint(self._gate.address, keys.public, broker.lease_seconds)
        self._router = self._gate.socket
        self._stop = self._context.socket(zmq.PAIR)
        self._stop.bind("inproc://stop")
        self._stopped = self._context.socket(zmq.PAIR)
        self._stopped.connect("inproc://stop")
        self._thread = threading.Thread(target=self._serve, name="queue-server", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """End the thread and close everything."""
        self._stop.send(b"")
        self._thread.join()
        self._stop.close()
        self._stopped.close()
        self._gate.close()
        self._context.term()

    def join(self) -> None:
        """Wait until the thread has ended."""
        self._thread.join()

    def _serve(self) -> None:
        poller = zmq.Poller()
        poller.register(self._router, zmq.POLLIN)
        poller.register(self._stopped, zmq.POLLIN)
        try:
            while True:
                ready = dict(poller.poll(self._patience()))
                if self._stopped in ready:
                    return
                # Overdue clients only after all mail was read: it may hold their signs of life.
                if self._receive_mail():
                    self._drop_overdue()
        except Exception as error:
            self.failure = f"the queue server failed: {type(error).__name__}: {error}"
            raise

    def _patience(self) -> int | None:
        """Milliseconds until a client is overdue."""
        deadline = self._broker.next_deadline()
        return None if deadline is None else max(0, int((deadline - self._clock()) * 1000) + 1)

    def _receive_mail(self) -> bool:
        """Handle what has come; whether that was all."""
        for _ in range(_MESSAGES_PER_TURN):
            try:
                identity, *frames = self._router.recv_multipart(zmq.DONTWAIT, copy=False)
            except zmq.Again:
                return True
            self._handle(identity.bytes, [frame.buffer for frame in frames])
        return False

    def _drop_overdue(self) -> None:
        for client in self._broker.overdue(self._clock()):
            self._drop(client)

    def _drop(self, client: str) -> None:
        self._sessions.pop(client, None)
        self._finish(self._broker.gone(client))

    # One message

    def _handle(self, identity: bytes, frames: list[memoryview]) -> None:
        try:
            request, groups = wire.decode_request(frames)
        except msgspec.DecodeError as error:
            self._refuse(identity, 0, "malformed", f"unreadable message: {error}")
            return
        if not self._gate.token_fits(request.token):
            self._refuse(identity, request.number, "token", "the token does not fit this queue")
            return
        session = self._sessions.setdefault(request.client, _Session(identity))
        session.identity = identity
        self._broker.touch(request.client, self._clock())
        session.forget_below(request.oldest)
        if isinstance(request.body, wire.Heartbeat):
            self._reconcile(request.client, session, request.body)
        elif isinstance(request.body, wire.Bye):
            self._drop(request.client)
        elif (answer := session.answers.get(request.number)) is not None:
            self._send(identity, answer.message)
        elif request.number >= session.oldest and request.number not in session.pending:
            self._begin(session, request, groups)

    def _begin(self, session: _Session, request: wire.Request, groups: list[bytes]) -> None:
        ticket = (request.client, request.number)
        if len(session.pending) + len(session.answers) >= _MAX_OPEN:
            why = f"a client may have {_MAX_OPEN} requests open"
            self._refuse(session.identity, request.number, "malformed", why)
            return
        session.pending.add(request.number)
        largest = max(map(len, groups), default=0)
        if largest > self._max_group_bytes:
            why = f"a group of {largest:,} bytes is above the limit of {self._max_group_bytes:,} bytes"
            self._reject(ticket, "too_large", why)
            return
        try:
            self._carry_out(request, groups)
        except GroupTooLarge as error:
            self._reject(ticket, "too_large", str(error))
        except WrongTerm as error:
            self._reject(ticket, "term", str(error))

    def _carry_out(self, request: wire.Request, groups: list[bytes]) -> None:
        broker, client, number = self._broker, request.client, request.number
        ticket, body = (client, number), request.body
        outcomes: list[Outcome] = []
        match body:
            case wire.Put():
                outcomes = broker.put(ticket, list(map(QueuedGroup, body.uids, body.samples, groups)))
            case wire.Get():
                outcomes = broker.get(ticket, body.uids)
            case wire.GetOldest():
                outcomes = broker.get_oldest(ticket, body.count)
            case wire.Ack():
                fresh, outcomes = broker.ack(body.uids, body.term)
                self._answer(ticket, wire.Acked(tuple(fresh)))
            case wire.Release():
                count, outcomes = broker.release(client, body.uids)
                self._answer(ticket, wire.Counted(count))
            case wire.Clear():
                count, outcomes = broker.clear(body.uids, body.reason)
                self._answer(ticket, wire.Counted(count))
            case wire.Reset():
                count, outcomes = broker.reset(body.term, body.watermark, body.ahead)
                self._answer(ticket, wire.Counted(count))
            case wire.Snapshot():
                self._answer_groups(ticket, broker.snapshot(), leased=False)
            case wire.GetStats():
                self._answer(ticket, wire.StatsReply(self._stats()))
        self._finish(outcomes)

    def _reconcile(self, client: str, session: _Session, beat: wire.Heartbeat) -> None:
        """Undo what the client has given up, answer again what it awaits, and name what never arrived."""
        for number in beat.abandoned:
            answer = session.answers.get(number, _Answer())
            session.pending.discard(number)
            session.answers[number] = _Answer()
            self._finish(self._broker.withdraw((client, number)))
            self._finish(self._broker.release(client, answer.leased)[1])
        unknown = []
        for number in beat.open:
            if number in session.answers:
                self._send(session.identity, session.answers[number].message)
            elif number not in session.pending:
                unknown.append(number)
        self._send(session.identity, _message(0, wire.Alive(tuple(unknown), beat.abandoned)))

    # Answers

    def _finish(self, outcomes: Sequence[Outcome]) -> None:
        for outcome in outcomes:
            match outcome:
                case Stored(ticket, accepted):
                    self._answer(ticket, wire.Stored(accepted))
                case Granted(ticket, groups):
                    self._answer_groups(ticket, groups)
                case Impossible(ticket, why):
                    self._reject(ticket, "impossible", why)

    def _answer_groups(
        self, ticket: tuple[str, int], groups: Sequence[QueuedGroup], leased: bool = True
    ) -> None:
        uids, samples, frames = zip(*groups, strict=True) if groups else ((), (), ())
        body = wire.Groups(uids, samples, tuple(map(len, frames)), self._broker.term)
        self._answer(ticket, body, wire.pack(frames), uids if leased else ())

    def _answer(
        self,
        ticket: tuple[str, int],
        body: wire.Answer,
        frames: Sequence[bytes] = (),
        leased: tuple[int, ...] = (),
    ) -> None:
        client, number = ticket
        session = self._sessions[client]
        session.pending.discard(number)
        answer = session.answers[number] = _Answer((*_message(number, body), *frames), leased)
        self._send(session.identity, answer.message)

    def _reject(self, ticket: tuple[str, int], kind: wire.RefusalKind, why: str) -> None:
        """Refuse a request of a known client; it is not carried out when it comes again."""
        self._refused[kind] += 1
        self._answer(ticket, wire.Refused(kind, why))

    def _refuse(self, identity: bytes, number: int, kind: wire.RefusalKind, why: str) -> None:
        self._refused[kind] += 1
        self._send(identity, _message(number, wire.Refused(kind, why)))

    def _send(self, identity: bytes, message: Sequence[bytes]) -> None:
        if not message:
            return
        try:
            self._router.send_multipart([identity, *message], zmq.DONTWAIT, copy=False)
        except zmq.ZMQError as error:
            # The connection is gone: the client asks again when it has another.
            if error.errno != zmq.EHOSTUNREACH:
                raise

    def _stats(self) -> wire.Stats:
        refused = dict(self._refused)
        if self._gate.denied:
            refused["key"] = self._gate.denied
        return msgspec.structs.replace(self._broker.stats(), refused=refused)


def _message(number: int, body: wire.Answer) -> tuple[bytes, ...]:
    return (wire.encode(wire.Reply(number, body)),)
