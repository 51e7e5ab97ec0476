"""The queue's server: a thread that applies the broker's rules to what its clients send.

Guarantees: every readable request is answered, once its outcome is known; an unreadable, unauthorized or
oversized one is answered with the reason and counted; none of them ends the server. A request that comes
again gets its first answer again, unless that was sent over the client's present connection: then it is on
its way, however long it takes. A slow client delays nobody, and lives as long as parts of its messages
arrive. The thread sleeps until a message comes or a client is overdue.
"""

import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import msgspec
import zmq

from rljob_runtime.net.auth import Endpoint, Gate, ServerKeys
from rljob_runtime.net.memory import reuse_freed_memory
from rljob_runtime.net.messages import Buffer
from rljob_runtime.queue import wire
from rljob_runtime.queue.broker import Broker, Granted, GroupTooLarge, Impossible, Outcome, Stored, WrongTerm
from rljob_runtime.queue.wire import QueuedGroup

_MESSAGES_PER_TURN = 256
"""Read in a row before the thread looks whether it is to stop: a flood of messages must not put that off."""


@dataclass(slots=True)
class _Answer:
    """The answer to a request, kept until the client says that it has it (`Request.oldest`)."""

    messages: Sequence[Sequence[Buffer]] = ()
    """Empty where nobody waits for it."""
    leased: tuple[int, ...] = ()
    """The groups that the client holds once it has received it."""
    sent_to: bytes | None = None
    """The connection over which all of it was sent; None where it was not."""


@dataclass
class _Session:
    """A client, as the server knows it."""

    identity: bytes
    """Its connection: where its newest message came from. ZeroMQ gives each connection another one."""
    oldest: int = 1
    """The client has the answers to all requests with a smaller number."""
    pending: set[int] = field(default_factory=set)
    """Requests without an outcome yet."""
    answers: dict[int, _Answer] = field(default_factory=dict)
    """Answers to the requests from `oldest` on that have an outcome."""
    arriving: dict[int, wire.Parts] = field(default_factory=dict)
    """By request, the parts that have come of one whose last message has not."""

    @property
    def open(self) -> int:
        """Requests that take memory here."""
        return len(self.pending) + len(self.answers) + len(self.arriving)

    def knows(self, number: int) -> bool:
        """Whether a request is under way here, or at its end."""
        return number < self.oldest or number in self.pending or number in self.answers

    def forget_below(self, oldest: int) -> None:
        """The client has the answers to all requests below `oldest`."""
        if oldest > self.oldest:
            self.oldest = oldest
            for known in (self.answers, self.arriving):
                for number in [number for number in known if number < oldest]:
                    del known[number]


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

        A put with a group above `max_group_bytes` is refused."""
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
            self._gate = Gate(self._context, address, keys, wire.MAX_FRAME_BYTES)
        except BaseException:
            self._context.term()
            raise
        self.endpoint = Endpoint(self._gate.address, keys.public, broker.lease_seconds)
        self._router = self._gate.socket
        # A ZeroMQ socket belongs to one thread. `stop` is called in another one, and wakes the serving thread
        # through this pair.
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
        """Milliseconds until a client is overdue, rounded up; None without clients."""
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
        # First: what the broker ends now are requests of other clients.
        self._sessions.pop(client, None)
        self._finish(self._broker.gone(client))

    # One message

    def _handle(self, identity: bytes, frames: list[memoryview]) -> None:
        try:
            request, payload = wire.decode_request(frames)
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
        match request.body:
            case wire.Heartbeat():
                self._reconcile(request.client, session, request.body)
            case wire.Bye():
                self._drop(request.client)
            case wire.Part(index):
                self._take_part(session, request.number, index, payload[0])
            # It comes again, for the client has no answer yet.
            case _ if (answer := session.answers.get(request.number)) is not None:
                self._deliver(session, answer)
            case _ if not session.knows(request.number):
                self._begin(session, request, payload)

    def _take_part(self, session: _Session, number: int, index: int, frame: Buffer) -> None:
        if session.knows(number):
            return
        if number not in session.arriving and self._is_full(session, number):
            return
        session.arriving.setdefault(number, wire.Parts()).take(index, frame)
        self._send(session.identity, _message(number, wire.PartTaken()))

    def _is_full(self, session: _Session, number: int) -> bool:
        """Whether no more requests of a client are taken, which it is told."""
        if session.open < wire.MAX_OPEN:
            return False
        why = f"a client may have {wire.MAX_OPEN} requests open"
        self._refuse(session.identity, number, "malformed", why)
        return True

    def _begin(self, session: _Session, request: wire.Request, payload: Sequence[Buffer]) -> None:
        ticket = (request.client, request.number)
        whole = session.arriving.pop(request.number, wire.Parts()).whole(request.parts, payload)
        if whole is None:
            # A connection broke between its parts. The client's next heartbeat asks for the request, and is
            # told that it is unknown: it is then sent again from its first part on.
            return
        if self._is_full(session, request.number):
            return
        try:
            groups = wire.unpack_groups(request.body, whole)
        except msgspec.DecodeError as error:
            self._refuse(session.identity, 0, "malformed", f"unreadable message: {error}")
            return
        # Before it is carried out: an answer that is there at once takes it out again.
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
        broker, ticket, body = self._broker, (request.client, request.number), request.body
        outcomes: list[Outcome] = []
        match body:
            case wire.Put():
                outcomes = broker.put(ticket, list(map(QueuedGroup, body.uids, body.samples, groups)))
            case wire.Get():
                outcomes = broker.get(ticket, body.uids)
            case wire.Ack():
                fresh, outcomes = broker.ack(body.uids, body.term)
                self._answer(ticket, wire.Acked(tuple(fresh)))
            case wire.Reset():
                count, outcomes = broker.reset(body.term, body.watermark, body.ahead)
                self._answer(ticket, wire.Counted(count))
            case wire.GetStats():
                self._answer(ticket, wire.StatsReply(self._stats()))
        self._finish(outcomes)

    def _reconcile(self, client: str, session: _Session, beat: wire.Heartbeat) -> None:
        """Undo what the client has given up, answer again what it awaits and did not get over this
        connection, and name what never arrived."""
        for number in beat.abandoned:
            session.arriving.pop(number, None)
            answer = session.answers.get(number, _Answer())
            session.pending.discard(number)
            # A request that arrives after it was abandoned is known by this, and not carried out.
            session.answers[number] = _Answer()
            self._finish(self._broker.withdraw((client, number)))
            self._finish(self._broker.release(client, answer.leased))
        unknown = []
        for number in beat.open:
            if number in session.answers:
                self._deliver(session, session.answers[number])
            elif number not in session.pending:
                unknown.append(number)
        self._send(session.identity, _message(0, wire.Alive(beat.beat, tuple(unknown), beat.abandoned)))

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

    def _answer_groups(self, ticket: tuple[str, int], groups: Sequence[QueuedGroup]) -> None:
        uids, samples, frames = zip(*groups, strict=True) if groups else ((), (), ())
        body = wire.Groups(uids, samples, tuple(map(len, frames)), self._broker.term)
        self._answer(ticket, body, frames, uids)

    def _answer(
        self,
        ticket: tuple[str, int],
        body: wire.Answer,
        groups: Sequence[bytes] = (),
        leased: tuple[int, ...] = (),
    ) -> None:
        client, number = ticket
        # There is one: the broker ends no request of a client that it knows to be gone.
        session = self._sessions[client]
        session.pending.discard(number)
        answer = session.answers[number] = _Answer(_messages(number, body, groups), leased)
        self._deliver(session, answer)

    def _reject(self, ticket: tuple[str, int], kind: wire.RefusalKind, why: str) -> None:
        """Refuse a request of a known client; it is not carried out when it comes again."""
        self._refused[kind] += 1
        self._answer(ticket, wire.Refused(kind, why))

    def _refuse(self, identity: bytes, number: int, kind: wire.RefusalKind, why: str) -> None:
        self._refused[kind] += 1
        self._send(identity, _message(number, wire.Refused(kind, why)))

    def _deliver(self, session: _Session, answer: _Answer) -> None:
        """Send an answer, unless it is on its way over the client's connection, or there already."""
        if answer.sent_to == session.identity:
            return
        if all(self._send(session.identity, message) for message in answer.messages):
            answer.sent_to = session.identity

    def _send(self, identity: bytes, message: Sequence[Buffer]) -> bool:
        """Hand a message to ZeroMQ, which keeps it until the client takes it; False where there is no such
        connection any more: the client asks again when it has another."""
        try:
            self._router.send_multipart([identity, *message], zmq.DONTWAIT, copy=False)
        except zmq.ZMQError as error:
            if error.errno != zmq.EHOSTUNREACH:
                raise
            return False
        return True

    def _stats(self) -> wire.Stats:
        refused = dict(self._refused)
        if self._gate.denied:
            refused["key"] = self._gate.denied
        return msgspec.structs.replace(self._broker.stats(), refused=refused)


def _message(number: int, body: wire.Answer) -> tuple[bytes, ...]:
    return (wire.encode(wire.Reply(number, body)),)


def _messages(number: int, body: wire.Answer, groups: Sequence[bytes]) -> list[list[Buffer]]:
    """An answer with its groups."""

    def head(part: wire.Part | None, parts: int) -> bytes:
        return wire.encode(wire.Reply(number, body if part is None else part, parts))

    return wire.messages(head, groups)
