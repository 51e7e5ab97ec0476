"""Sending weights from the trainer to all engines at once over HCCL, on Ascend NPUs.

The same as `weights.nccl` with vllm-ascend's communicator and its weight transfer engine "hccl". Written
against vllm-ascend's source; it has not been run, as no NPU was at hand.
"""

from typing import Any

from rljob_runtime.weights.nccl import NcclSender, open_store


class HcclSender(NcclSender):
    """The trainer's side; used by the trainer's rank 0, whose current NPU holds the tensors."""

    def _device(self) -> Any:
        import torch

        return torch.accelerator.current_device_index()

    def _join(self, host: str, port: int, world_size: int, device: Any) -> Any:
        import torch
        from vllm_ascend.distributed.device_communicators.pyhccl import (  # type: ignore[import-not-found]
            PyHcclCommunicator,
        )

        torch.accelerator.set_device_index(device)
        return PyHcclCommunicator(open_store(host, port, world_size), device=device)

    def _stream(self) -> Any:
        import torch

        # The communicator asks for `npu_stream`, which the streams of torch.accelerator do not have.
        return torch.npu.current_stream()  # type: ignore[attr-defined]

    def _synchronize(self) -> None:
        import torch

        torch.accelerator.synchronize()

    def _abort(self, group: Any) -> None:
        """Nothing: vllm-ascend offers no abort. Where the device waits for the lost member too, the trainer
        does not come out of the sending in time, and is started again from its checkpoint."""
