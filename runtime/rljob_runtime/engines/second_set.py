"""A second set of a model's weights, filled while the model computes with the first, then put in its place.

Guarantees:
- nothing of the model changes but in `place`, and there only when a version has arrived whole;
- what arrives goes to the place that it has in the model, by a map that was found beforehand (`Region`):
  `place` is a copy within the device, of one call for each number format;
- one version at a time arrives, in a thread and on streams of its own; what arrives later takes the place
  of what was not put into the model, and waits on the device for what is still copied into it;
- what of the model no version holds, such as padding, stays as it was.
"""

import os
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

import torch

from rljob_runtime.weights.buckets import Bucket, Placed, file_buckets
from rljob_runtime.weights.contents import TIED_HEAD

_READ_BYTES = 32 * 2**20
"""Read from a file at a time, on the way to a device."""


class View(NamedTuple):
    """A part of a tensor's storage, in elements from the tensor's beginning."""

    offset: int
    shape: tuple[int, ...]
    stride: tuple[int, ...]

    def of(self, tensor: torch.Tensor) -> torch.Tensor:
        """This part of `tensor`."""
        return tensor.as_strided(self.shape, self.stride, tensor.storage_offset() + self.offset)

    @property
    def elements(self) -> int:
        """How many it has."""
        return prod(self.shape)


class Region(NamedTuple):
    """Where a part of a version's tensor goes."""

    source: View
    target: int
    """Number of the model's tensor."""
    place: View
    """The part of that."""


class Layout(NamedTuple):
    """How versions lie in a model."""

    live: list[torch.Tensor]
    """The model's tensors, by their numbers."""
    regions: Mapping[str, Sequence[Region]]
    """By name of a version's tensor; none where this rank has no part of it."""


_Way = tuple[list[torch.Tensor], list[torch.Tensor]]
"""Of a bucket: its tensors' parts in the second set, and the parts of the buffer that go there."""


class SecondSet:
    """See the module's guarantees. `start` and `place` belong to one thread."""

    def __init__(self, layout: Layout, bucket_bytes: int) -> None:
        """`bucket_bytes`: of the largest bucket that comes."""
        self._live = layout.live
        self._regions = layout.regions
        self._device = layout.live[0].device
        self._cuda = self._device.type == "cuda"
        # Also what no version holds.
        self._next = [tensor.clone() for tensor in layout.live]
        self._places = {
            name: [region.place.of(self._next[region.target]) for region in regions]
            for name, regions in layout.regions.items()
        }
        self._buckets = [torch.empty(bucket_bytes, dtype=torch.uint8, device=self._device) for _ in range(2)]
        self._ways: dict[int, tuple[Bucket, _Way]] = {}
        """From the buckets that are broadcast, by their numbers: the same with each version."""
        self._arriving = False
        self._arrived: int | None = None
        """The number of what has arrived whole."""
        self._placed: Any = None
        """Event of the last copy into the model; None before the first one, and on CPUs."""
        if self._cuda:
            self._stream: Any = torch.cuda.Stream(self._device)  # type: ignore[no-untyped-call]
            self._spreading: Any = torch.cuda.Stream(self._device)  # type: ignore[no-untyped-call]
            self._pinned = [torch.empty(_READ_BYTES, dtype=torch.uint8, pin_memory=True) for _ in range(2)]

    def start(self, number: int, bring: Callable[[], None], done: Callable[[str], None]) -> None:
        """Have `bring` (which calls `from_folder` or `receive`) done in another thread; `done` is told there
        what went wrong, "" where nothing did."""
        if self._arriving:
            raise RuntimeError("a version is still arriving")
        self._arriving, self._arrived = True, None
        # A daemon: one that waits for a group that never meets does not keep the process alive.
        threading.Thread(
            target=self._bring, args=(number, bring, done), name="second-set", daemon=True
        ).start()

    def place(self, number: int) -> None:
        """Put what arrived under this number into the model; the caller's stream computes with it from then
        on, and what it was given before with the weights before. Raises `RuntimeError`, with the model as it
        was, where it has not arrived."""
        if self._arrived != number:
            raise RuntimeError(f"version {number} of the second set is not there, but {self._arrived}")
        self._arrived = None
        formats: dict[torch.dtype, tuple[list[torch.Tensor], list[torch.Tensor]]] = {}
        for live, new in zip(self._live, self._next, strict=True):
            targets, sources = formats.setdefault(live.dtype, ([], []))
            targets.append(live)
            sources.append(new)
        with torch.no_grad():
            for targets, sources in formats.values():
                torch._foreach_copy_(targets, sources)
        if self._cuda:
            self._placed = torch.cuda.current_stream(self._device).record_event()

    def from_folder(self, folder: Path) -> None:
        """Bring the weights of a folder. Raises `ValueError`, `OSError`."""
        seen: set[str] = set()
        for file in sorted(folder.glob("*.safetensors")):
            descriptor = os.open(file, os.O_RDONLY | os.O_CLOEXEC)
            try:
                for bucket in file_buckets(file):
                    self._read(descriptor, bucket)
                    _copy(self._way(bucket, self._buckets[0]))
                    seen.update(tensor.name for tensor in bucket.tensors)
            finally:
                os.close(descriptor)
        self._check_whole(seen)

    def receive(self, buckets: Sequence[Bucket], broadcast: Callable[[torch.Tensor, Any], None]) -> None:
        """Take part in the broadcast of `buckets`; `broadcast` begins to receive a tensor on a stream. The
        next bucket comes while the one before it is spread."""
        spread: list[Any] = [None, None]
        ways = [self._way_of(index, bucket) for index, bucket in enumerate(buckets)]
        for index, (bucket, way) in enumerate(zip(buckets, ways, strict=True)):
            buffer = self._buckets[index % 2][: bucket.size]
            if not self._cuda:
                broadcast(buffer, None)
                _copy(way)
                continue
            if spread[index % 2] is not None:
                self._stream.wait_event(spread[index % 2])
            broadcast(buffer, self._stream)
            self._spreading.wait_event(self._stream.record_event())
            with torch.cuda.stream(self._spreading):
                _copy(way)
            spread[index % 2] = self._spreading.record_event()
        self._check_whole({tensor.name for bucket in buckets for tensor in bucket.tensors})

    def _bring(self, number: int, bring: Callable[[], None], done: Callable[[str], None]) -> None:
        why = ""
        try:
            with self._on_device(), torch.no_grad():
                if self._placed is not None:
                    # Nobody may have waited for the copy out of what is overwritten now.
                    self._stream.wait_event(self._placed)
                    self._spreading.wait_event(self._placed)
                bring()
                if self._cuda:
                    self._stream.synchronize()
                    self._spreading.synchronize()
            self._arrived = number
        except Exception as error:  # noqa: BLE001 - whoever waits for the version learns of it
            why = f"{type(error).__name__}: {error}"
        # Before anybody is told, who may begin the next one at once.
        self._arriving = False
        done(why)

    def _on_device(self) -> AbstractContextManager[Any]:
        if not self._cuda:
            return nullcontext()
        # The current device and stream are those of a thread.
        torch.cuda.set_device(self._device)
        return torch.cuda.stream(self._stream)

    def _read(self, descriptor: int, bucket: Bucket) -> None:
        """Bring a bucket of an open file to the first buffer."""
        buffer = self._buckets[0][: bucket.size]
        if not self._cuda:
            _read_whole(descriptor, bucket.begin, buffer)
            return
        copied: list[Any] = [None, None]
        for index, begin in enumerate(range(0, bucket.size, _READ_BYTES)):
            if copied[index % 2] is not None:
                copied[index % 2].synchronize()
            part = self._pinned[index % 2][: min(_READ_BYTES, bucket.size - begin)]
            _read_whole(descriptor, bucket.begin + begin, part)
            buffer[begin : begin + len(part)].copy_(part, non_blocking=True)
            copied[index % 2] = self._stream.record_event()
        # What is read next overwrites what this reads from.
        for event in copied:
            if event is not None:
                event.synchronize()

    def _way_of(self, index: int, bucket: Bucket) -> _Way:
        """Of the bucket with this number of a broadcast. Found once: for a model of hundreds of tensors that
        takes as long as its bytes."""
        known = self._ways.get(index)
        if known is None or known[0] != bucket:
            known = self._ways[index] = bucket, self._way(bucket, self._buckets[index % 2])
        return known[1]

    def _way(self, bucket: Bucket, buffer: torch.Tensor) -> _Way:
        """Where a bucket's tensors go, from the buffer that it is in."""
        targets: list[torch.Tensor] = []
        sources: list[torch.Tensor] = []
        for tensor in bucket.tensors:
            if tensor.name not in self._regions:
                if tensor.name == TIED_HEAD:
                    continue
                raise ValueError(f"the model has no {tensor.name}")
            if tensor.begin + tensor.size > len(buffer):
                raise ValueError(f"{tensor.name} is larger than a bucket")
            flat = numbers(buffer, tensor)
            targets += self._places[tensor.name]
            sources += [region.source.of(flat) for region in self._regions[tensor.name]]
        return targets, sources

    def _check_whole(self, seen: Iterable[str]) -> None:
        missing = self._regions.keys() - set(seen) - {TIED_HEAD}
        if missing:
            raise ValueError(f"{min(missing)} is missing")


def _copy(way: _Way) -> None:
    """Bring a bucket's tensors to their places, on the current stream."""
    targets, sources = way
    if targets:
        torch._foreach_copy_(targets, sources)


def numbers(buffer: torch.Tensor, tensor: Placed) -> torch.Tensor:
    """A tensor of a bucket, flat, as a view of the bucket's bytes."""
    return buffer[tensor.begin : tensor.begin + tensor.size].view(getattr(torch, tensor.dtype))


def _read_whole(descriptor: int, begin: int, into: torch.Tensor) -> None:
    array: Any = into.numpy()
    memory = memoryview(array)
    done = 0
    while done < len(memory):
        count = os.preadv(descriptor, [memory[done:]], begin + done)
        if count == 0:
            raise OSError("the file ends before its header says")
        done += count
