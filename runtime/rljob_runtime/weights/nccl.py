"""Sending weights from the trainer to all engines at once over NCCL.

The engines' side is vLLM's weight transfer engine "nccl" in its unpacked form, which both supported versions
of vLLM speak alike.
"""

from typing import TYPE_CHECKING, Any

from rljob_runtime.weights.collective import CollectiveSender
from rljob_runtime.weights.disabled_group import working

if TYPE_CHECKING:
    import torch


class NcclSender(CollectiveSender):
    """The trainer's side; its current CUDA device holds the tensors."""

    _side: Any = None
    """A stream on which buckets are sent, while the next one is packed."""

    def _device(self) -> Any:
        import torch

        return torch.cuda.current_device()

    def _join(self, host: str, port: int, world_size: int, device: Any) -> Any:
        import torch
        from vllm.distributed.device_communicators.pynccl import PyNcclCommunicator

        # The current device is one of a thread, and this thread is the sender's own.
        torch.cuda.set_device(device)
        return working(PyNcclCommunicator(open_store(host, port, world_size), device=device))

    def _stream(self) -> Any:
        import torch

        return torch.cuda.current_stream()

    def _broadcast(self, tensor: "torch.Tensor", stream: Any) -> None:
        # Not on this thread's own stream: vLLM puts a new one in the place of the default stream when a
        # communicator is made, and that one waits for nothing.
        self._group.broadcast(tensor, src=0, stream=stream)

    def _mark(self, stream: Any) -> Any:
        return stream.record_event()

    def _broadcast_bucket(self, bucket: "torch.Tensor", packed: Any) -> Any:
        import torch

        if self._side is None:
            self._side = torch.cuda.Stream(bucket.device)  # type: ignore[no-untyped-call]
        self._side.wait_event(packed)
        self._broadcast(bucket, self._side)
        return self._side.record_event()

    def _synchronize(self) -> None:
        import torch

        torch.cuda.synchronize()

    def _abort(self, group: Any) -> None:
        """NCCL's own way out of an operation whose peers are gone; it may be called from any thread."""
        import torch

        with torch.cuda.device(group.device):
            group.nccl.lib.ncclCommAbort(group.comm)


def open_store(host: str, port: int, world_size: int) -> Any:
    """The rendezvous of a group in which this process is rank 0: a store that the engines connect to."""
    from vllm.distributed.utils import StatelessProcessGroup

    return StatelessProcessGroup.create(host=host, port=port, rank=0, world_size=world_size)
