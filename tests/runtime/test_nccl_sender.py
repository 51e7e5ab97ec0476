"""Broadcasts over NCCL: what a lost engine costs, and tensors that are not computed yet.

Needs two NVIDIA accelerators. The counterpart of `test_collective_loss.py`, whose gloo has neither NCCL's
abort nor streams.
"""

import os
from collections.abc import Iterator

import pytest
import torch

from rljob_runtime.weights.nccl import NcclSender
from tests.support.runtime.weight_receivers import LOSSES, LOSSES_IDS, Receiver, check_a_loss

SOON = 15.0
"""Seconds, where NCCL itself would wait for ever."""

pytestmark = [
    pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two NVIDIA accelerators"),
    pytest.mark.timeout(300),
]

RECEIVER = """
import sys, time
import torch
from vllm.distributed.device_communicators.pynccl import PyNcclCommunicator
from vllm.distributed.utils import StatelessProcessGroup
from rljob_runtime.weights.collective import Rendezvous
from tests.support.runtime.gloo_group import digest

location, until, shapes = sys.argv[1], sys.argv[2], eval(sys.argv[3])
torch.cuda.set_device(0)
meeting = Rendezvous.parse(location)
store = StatelessProcessGroup.create(
    host=meeting.host, port=meeting.port, rank=meeting.rank_offset, world_size=meeting.world_size
)
if until != "store":
    group = PyNcclCommunicator(store, device=torch.device("cuda:0"))
print("there", flush=True)
if until == "end":
    tensors = {name: torch.empty(*shape, device="cuda") for name, shape in shapes.items()}
    for tensor in tensors.values():
        group.broadcast(tensor, src=0, stream=torch.cuda.current_stream())
    torch.cuda.synchronize()
    print(digest({name: tensor.cpu() for name, tensor in tensors.items()}), flush=True)
time.sleep(600)
"""


SHAPES = {"a": (256, 1024, 1024), "b": (3, 5), "c": (1024, 1024), "d": (1024, 1024)}
"""The first takes 1 GiB, more than NCCL holds on the way."""


@pytest.fixture
def receiver() -> Receiver:
    """On the second accelerator."""
    return Receiver(RECEIVER, SHAPES, {**os.environ, "CUDA_VISIBLE_DEVICES": "1"})


@pytest.mark.parametrize("loss", LOSSES, ids=LOSSES_IDS)
def test_a_sender_stops_waiting_for_a_lost_receiver(receiver: Receiver, loss: tuple[str, bool]) -> None:
    """Wherever it was lost; afterwards a new group gets the weights, from the same process."""
    check_a_loss(NcclSender, receiver, "cuda:0", loss, SOON)


def test_tensors_that_are_still_being_computed_arrive_whole(receiver: Receiver) -> None:
    """And so do those whose memory the next ones take."""
    want = {name: torch.rand(*shape) for name, shape in SHAPES.items()}

    def computed() -> Iterator[tuple[str, torch.Tensor]]:
        busy = torch.rand(8192, 8192, device="cuda:0")
        for name, tensor in want.items():
            made = torch.zeros_like(tensor, device="cuda:0")
            for _ in range(20):
                busy = (busy @ busy).clamp(0, 1)
            yield name, made.copy_(tensor.pin_memory(), non_blocking=True)

    receiver.check_gets(NcclSender(), computed(), want, SOON)
