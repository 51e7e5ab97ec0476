"""A sender of weights and its receiver, another process, which may be lost; for every library."""

import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager

import pytest
import torch

from rljob_runtime.weights.collective import BrokenOff, CollectiveSender, Rendezvous
from tests.support.runtime.gloo_group import digest
from tools.cluster.ports import Ports

PORTS = Ports()
Shapes = Mapping[str, tuple[int, ...]]
Tensors = Iterable[tuple[str, torch.Tensor]]

LOSSES = [("nowhere", False), ("store", True), ("store", False), ("group", True), ("group", False)]
"""How far the receiver comes, of "nowhere", "store", "group" and "end", and whether it is killed there or
silent."""
LOSSES_IDS = ["never there", "killed at the door", "silent at the door", "killed inside", "silent inside"]
"""Names of `LOSSES` for pytest: at the door is at the store, inside is in the process group."""


def meeting_place() -> Rendezvous:
    """A port that nobody else gets, for a sender and one receiver."""
    return Rendezvous("127.0.0.1", PORTS.take(), 2, 1)


class Sending(threading.Thread):
    """A sender that meets one receiver and sends a version."""

    def __init__(self, sender: CollectiveSender, place: Rendezvous, tensors: Tensors, shapes: Shapes) -> None:
        super().__init__(daemon=True)
        self.sender = sender
        self.error: Exception | None = None
        self._place = place
        self.tensors = tensors
        self.shapes = shapes
        self.start()

    def run(self) -> None:
        try:
            self.sender.init(2, self._place.address)
            self.sender.send(1, self.tensors, self.shapes)
        except Exception as error:  # noqa: BLE001 - looked at by the test
            self.error = error


class Receiver:
    """Starts receivers. `script` is given place, `until` and shapes; it prints "there" when it is as far as
    `until`, and where that is "end" the digest of what it got."""

    def __init__(self, script: str, shapes: Shapes, environment: Mapping[str, str] | None = None) -> None:
        self.shapes = shapes
        self._script = script
        self._environment = environment

    @contextmanager
    def there(self, place: Rendezvous, until: str) -> "Iterator[subprocess.Popen[str]]":
        """One that is as far as `until`."""
        command = [sys.executable, "-c", self._script, str(place), until, repr(dict(self.shapes))]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=self._environment)
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "there\n"
            yield process
        finally:
            process.kill()
            process.wait(30)

    def check_gets(
        self, sender: CollectiveSender, tensors: Tensors, want: Mapping[str, torch.Tensor], soon: float
    ) -> None:
        """A new receiver gets `want`, and the sender has then sent it all within `soon` seconds."""
        place = meeting_place()
        sending = Sending(sender, place, tensors, self.shapes)
        with self.there(place, "end") as process:
            assert process.stdout is not None
            assert process.stdout.readline().strip() == digest(want)
            sending.join(soon)
            assert not sending.is_alive()
            assert sending.error is None
            sender.close()


def check_a_loss(
    make: Callable[[], CollectiveSender],
    receiver: Receiver,
    device: str,
    loss: tuple[str, bool],
    soon: float,
) -> None:
    """The sender ends within `soon` seconds of being told of a loss (see `LOSSES`), and a new one in this
    process sends to a new receiver."""
    until, killed = loss
    tensors = {name: torch.rand(*shape, device=device) for name, shape in receiver.shapes.items()}
    place = meeting_place()
    sending = Sending(make(), place, tensors.items(), receiver.shapes)
    if until == "nowhere":
        stop_waiting(sending, soon)
    else:
        with receiver.there(place, until) as process:
            sending.join(1.0)  # long enough for a sender that would not wait to end
            assert sending.is_alive(), sending.error
            if killed:
                process.kill()
            stop_waiting(sending, soon)
    host = {name: tensor.cpu() for name, tensor in tensors.items()}
    receiver.check_gets(make(), tensors.items(), host, soon)


def stop_waiting(sending: Sending, soon: float) -> None:
    """A sender that is told of the loss ends with that error, and sends nothing any more."""
    began = time.monotonic()
    sending.sender.break_off("an engine was lost")
    sending.join(soon)
    assert not sending.is_alive()
    assert time.monotonic() - began < soon
    assert isinstance(sending.error, BrokenOff)
    with pytest.raises(BrokenOff):
        sending.sender.send(2, sending.tensors, sending.shapes)
