"""Sending weights from the trainer to all engines at once, in a group of their own.

The trainer is rank 0 of the group, every accelerator of every engine is one more rank; each tensor is
broadcast in the order of names. The group is joined once and serves all versions.

Guarantees: a group that has lost a member is of no use any more, and whoever learns of the loss can say so
from another thread (`break_off`): what the sender is doing, be it waiting for members that never come, ends
at once with `BrokenOff`, and the next group is made anew. What the communication library raises ends it the
same way. All calls of the library are made in a thread of the sender's own, which is left behind where a
call does not return; what it gives the accelerator is in order with what the caller gave it, on the caller's
stream, so tensors may still be being computed when they are handed over.
"""

import logging
import queue
import threading
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, wait
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, Self, TypeVar

from rljob_runtime.weights.packing import IN_TURNS, packed

if TYPE_CHECKING:
    import torch

T = TypeVar("T")

_TURN_SECONDS = 1.0
"""How long a call of the library is given to return before its group is aborted under it."""

log = logging.getLogger(__name__)


class BrokenOff(RuntimeError):
    """The group is of no use any more; the message says why."""


class Rendezvous(NamedTuple):
    """Where sender and engines meet; `WeightRef.location` is its text form, one for each engine."""

    host: str
    port: int
    world_size: int
    """The sender and all accelerators of all engines."""
    rank_offset: int
    """Rank of the engine's first accelerator; the sender's is 0."""

    @classmethod
    def parse(cls, location: str) -> Self:
        """Read "host:port/world_size/rank_offset"; raises `ValueError`."""
        try:
            address, world_size, rank_offset = location.split("/")
            host, port = address.rsplit(":", 1)
            rendezvous = cls(host, int(port), int(world_size), int(rank_offset))
        except ValueError:
            raise ValueError(f"{location!r} is not host:port/world_size/rank_offset") from None
        if not 1 <= rendezvous.rank_offset < rendezvous.world_size:
            raise ValueError(f"{location!r}: rank_offset must be at least 1 and below world_size")
        return rendezvous

    @property
    def address(self) -> str:
        """host:port, the same for all who meet."""
        return f"{self.host}:{self.port}"

    def __str__(self) -> str:
        return f"{self.address}/{self.world_size}/{self.rank_offset}"


class CollectiveSender(ABC):
    """The trainer's side of one group; used by the trainer's rank 0. A library's class adds the calls."""

    def __init__(self, call_seconds: float = 600.0) -> None:
        """`call_seconds`: longest that one call of the library may take: the meeting of all members, or the
        last of the tensors."""
        self._call_seconds = call_seconds
        self._group: Any = None
        self._broken: Future[str] = Future()
        """Why the group is of no use any more."""
        self._work: queue.SimpleQueue[tuple[Callable[[], Any], Future[Any]] | None] = queue.SimpleQueue()
        self._turn = threading.Lock()
        """Held during a call of the library."""
        self._ending = threading.Lock()
        """Held for a moment while the group is ended; several threads may do so at a time."""
        # A daemon: a call that never returns does not keep the process alive.
        threading.Thread(target=self._serve, name="engine-group", daemon=True).start()

    def init(self, world_size: int, address: str) -> None:
        """Open the group at `address` ("host:port" of this machine); returns when every engine has joined.
        Raises `BrokenOff`."""
        host, port = address.rsplit(":", 1)
        device = self._device()

        def join() -> None:
            self._group = self._join(host, int(port), world_size, device)

        self._run(join)

    def send(
        self,
        version: int,
        tensors: "Iterable[tuple[str, torch.Tensor]]",
        metadata: Mapping[str, Any],
        staged: bool = False,
    ) -> None:
        """Broadcast the weights of `version`, in buckets where engines take them in beside what they generate
        with (`staged`); returns when they are sent. Raises `BrokenOff`.

        `metadata` is `contents.tensor_shapes` of the model's folder, from which the engines know what
        follows; `tensors` must yield those names in that order, whole (not sharded), on the accelerator,
        in the engines' number format (`weights.formats`). Raises `ValueError` at the first that differs.
        """
        if self._group is None and not self._broken.done():
            raise RuntimeError("send before init")
        announced = _announced(version, tensors, metadata)
        if staged:
            self._send_buckets(packed(announced, dict(metadata)))
        else:
            for _, tensor in announced:
                self._run(partial(self._broadcast, tensor.contiguous(), self._stream()))
        self._run(self._synchronize)

    def _send_buckets(self, buckets: "Iterator[torch.Tensor]") -> None:
        """Broadcast buckets of `packing.packed`: the next one is packed while the one before is handed over,
        and in the place of the one before that once it has been sent. Raises `BrokenOff`."""
        stream, sending = self._stream(), deque[Future[Any]]()
        while True:
            if len(sending) == IN_TURNS and (sent := self._result(sending.popleft())) is not None:
                stream.wait_event(sent)
            bucket = next(buckets, None)
            if bucket is None:
                break
            sending.append(self._submit(partial(self._broadcast_bucket, bucket, self._mark(stream))))
        for each in sending:
            self._result(each)

    def break_off(self, why: str) -> None:
        """A member is lost: end what the sender is doing, and whatever it is asked for later."""
        with self._ending:
            if not self._broken.done():
                self._broken.set_result(why)
        # A call under way returns first, and the next one is not begun. A call that waits for the lost member
        # does not return: its group is aborted under it, which ends it.
        turn = self._turn.acquire(timeout=_TURN_SECONDS)
        try:
            with self._ending:
                group, self._group = self._group, None
            if group is not None:
                self._abort(group)
        finally:
            if turn:
                self._turn.release()

    def close(self) -> None:
        """Leave the group."""
        self.break_off("closed")
        self._work.put(None)

    def _run(self, work: Callable[[], T]) -> T:
        """Have the sender's thread do `work` and return its result; raises as `_result`."""
        return self._result(self._submit(work))

    def _submit(self, work: Callable[[], T]) -> "Future[T]":
        """Have the sender's thread do `work` after what it was given before."""
        done: Future[T] = Future()
        self._work.put((work, done))
        return done

    def _result(self, done: "Future[T]") -> T:
        """What that work returns. Raises `BrokenOff` where the group breaks meanwhile, where the work raises,
        and where it takes too long."""
        either: tuple[Future[Any], ...] = (done, self._broken)
        wait(either, timeout=self._call_seconds, return_when=FIRST_COMPLETED)
        if not self._broken.done():
            if not done.done():
                self.break_off(f"a call took longer than {self._call_seconds:g} s")
            elif (error := done.exception()) is not None:
                self.break_off(f"{type(error).__name__}: {error}".splitlines()[0])
            else:
                return done.result()
        raise BrokenOff(self._broken.result())

    def _serve(self) -> None:
        """The sender's thread."""
        while (item := self._work.get()) is not None:
            work, done = item
            with self._turn:
                # `_run` has raised already; work that was begun now would use a group that is gone.
                if self._broken.done():
                    return
                try:
                    done.set_result(work())
                except Exception as error:  # noqa: BLE001 - whoever asked for the work learns of it
                    done.set_exception(error)
            if self._broken.done():
                # Broken off while it joined: nobody else knows of the group.
                self.break_off(self._broken.result())

    @abstractmethod
    def _device(self) -> Any:
        """This thread's current accelerator."""

    @abstractmethod
    def _join(self, host: str, port: int, world_size: int, device: Any) -> Any:
        """Open the group and wait for its members, in another thread than `device` is current in."""

    @abstractmethod
    def _stream(self) -> Any:
        """This thread's current stream of its accelerator, on which it computes tensors."""

    @abstractmethod
    def _broadcast(self, tensor: "torch.Tensor", stream: Any) -> None:
        """Begin to send one tensor from rank 0 to all others, in the order of `stream`."""

    def _mark(self, stream: Any) -> Any:
        """What `stream` has been given by now, as `_broadcast_bucket` takes it."""
        return stream

    def _broadcast_bucket(self, bucket: "torch.Tensor", packed: Any) -> Any:
        """Begin to send a bucket once `packed`, a mark, is done. Returns the event of its having been sent;
        None where it is sent in the order of the stream that packs it."""
        self._broadcast(bucket, packed)

    @abstractmethod
    def _synchronize(self) -> None:
        """Return when all that was broadcast has been sent."""

    @abstractmethod
    def _abort(self, group: Any) -> None:
        """Free the group without its members; a call that waits in it returns."""


def _announced(
    version: int, tensors: "Iterable[tuple[str, torch.Tensor]]", metadata: Mapping[str, Any]
) -> "Iterator[tuple[str, torch.Tensor]]":
    """The tensors, as long as they are those of `metadata`. Raises `ValueError`."""
    expected = iter(metadata.items())
    for name, tensor in tensors:
        want = next(expected, None)
        if want != (name, tuple(tensor.shape)):
            raise ValueError(
                f"weights of version {version}: got {name} {tuple(tensor.shape)}, announced {want}"
            )
        yield name, tensor
    if (missing := next(expected, None)) is not None:
        raise ValueError(f"weights of version {version}: {missing[0]} was announced and not sent")


class EngineGroup:
    """The group of the engines as they are now, made anew where they meet elsewhere than before."""

    def __init__(self, make: Callable[[str], CollectiveSender]) -> None:
        """`make` is given the transport."""
        self._make = make
        self._sender: CollectiveSender | None = None
        self._address = ""
        self._broken_address = ""
        """Where a group met that has lost a member; nothing is sent to it any more."""
        self._lock = threading.Lock()
        self._idle = threading.Event()
        """Set while nothing is sent."""
        self._idle.set()

    def send(
        self,
        transport: str,
        meeting: Rendezvous,
        version: int,
        tensors: "Iterable[tuple[str, torch.Tensor]]",
        metadata: Mapping[str, Any],
        staged: bool = False,
    ) -> bool:
        """Send the weights of `version` (see `CollectiveSender.send`) to the engines that come to `meeting`;
        whether they were sent to all, and not broken off."""
        with self._lock:
            # An engine of this group was lost before the sending began.
            if meeting.address == self._broken_address:
                return False
            # Under the lock: `break_off` then finds this sender, or has left its address for the check above.
            self._idle.clear()
            sender, new = self._sender, self._address != meeting.address
            if sender is None or new:
                if sender is not None:
                    sender.close()
                self._sender = sender = self._make(transport)
                self._address, new = meeting.address, True
        try:
            if new:
                sender.init(meeting.world_size, meeting.address)
            sender.send(version, tensors, metadata, staged)
            return True
        except BrokenOff as error:
            log.warning("version %d was not sent to all engines: %s", version, error)
            with self._lock:
                sender.close()
                self._sender, self._address = None, ""
            return False
        finally:
            self._idle.set()

    def break_off(self, address: str, why: str, seconds: float) -> None:
        """A member of the group that meets at `address` is lost: end the sending to it, now or when it
        begins. Returns when it has ended; raises `TimeoutError` where that takes longer than `seconds`."""
        with self._lock:
            self._broken_address = address
            sender = self._sender if self._address == address else None
        if sender is not None:
            sender.break_off(why)
            if not self._idle.wait(seconds):
                raise TimeoutError(f"the sending of weights did not end within {seconds:g} s")

    def close(self) -> None:
        """Leave the group."""
        with self._lock:
            if self._sender is not None:
                self._sender.close()
                self._sender, self._address = None, ""
