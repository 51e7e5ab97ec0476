"""A step's inputs, made on a thread while the device works on earlier ones.

Guarantees: they are made in order, each once, by one thread; what fails to be made raises where it is used;
after a step nothing is being made any more, also where the step failed.
"""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TypeVar, overload

import torch

T = TypeVar("T")


class Prefetched(Sequence[T]):
    """What `makers` return; each of them is waited for when it is used."""

    def __init__(self, thread: ThreadPoolExecutor, makers: Sequence[Callable[[], T]]) -> None:
        self._made = [thread.submit(make) for make in makers]

    def __len__(self) -> int:
        return len(self._made)

    @overload
    def __getitem__(self, index: int) -> T: ...

    @overload
    def __getitem__(self, index: slice) -> list[T]: ...

    def __getitem__(self, index: int | slice) -> T | list[T]:
        if isinstance(index, slice):
            return [each.result() for each in self._made[index]]
        return self._made[index].result()


@contextmanager
def one_thread(device: torch.device) -> Iterator[ThreadPoolExecutor]:
    """A thread for `Prefetched` whose current device is `device`; at the end what is not begun is dropped."""
    thread = ThreadPoolExecutor(1, "inputs", initializer=_use, initargs=(device,))
    try:
        yield thread
    finally:
        thread.shutdown(cancel_futures=True)


def _use(device: torch.device) -> None:
    # A new thread begins with the first device, on which it would take memory.
    if device.type != "cpu" and device.index is not None:
        torch.accelerator.set_device_index(device.index)
