"""Sending weights from the trainer to all engines at once over HCCL, on Ascend NPUs.

The same as `weights.nccl` with vllm-ascend's communicator and its weight transfer engine "hccl". Written
against vllm-ascend's source; it has not been run, as no NPU was at hand.
"""

import logging
from typing import Any

from rljob_runtime.weights.disabled_group import working
from rljob_runtime.weights.nccl import NcclSender, open_store

log = logging.getLogger(__name__)


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
        return working(PyHcclCommunicator(open_store(host, port, world_size), device=device))

    def _stream(self) -> Any:
        import torch

        # The communicator asks for `npu_stream`, which the streams of torch.accelerator do not have.
        return torch.npu.current_stream()  # type: ignore[attr-defined]

    def _synchronize(self) -> None:
        import torch

        torch.accelerator.synchronize()

    def _abort(self, group: Any) -> None:
        """HCCL destroys a group that no call is in, or that still waits for its members, and so frees the
        hundreds of megabytes that each takes on the device; it may be called from any thread. One that is
        sending it refuses to destroy: the trainer does not come out of that in time, and is started again
        from its checkpoint."""
        import torch

        with torch.npu.device(group.device):  # type: ignore[attr-defined]
            try:
                group.hccl.hcclCommDestroy(group.comm)
            except RuntimeError as error:
                log.warning("HCCL did not destroy the group of the engines: %s", error)
