"""Sending weights from the trainer to all engines at once over NCCL.

The trainer is rank 0 of a group of its own, every accelerator of every engine is one more rank; each tensor
is broadcast in the order of names. The engines' side is vLLM's weight transfer engine "nccl" in its unpacked
form, which both supported versions of vLLM speak alike.

The group is joined once and serves all versions. A rank that is lost breaks it: the surviving side fails or
blocks in NCCL, so the caller gives `init` and `send` a deadline, closes the sender and starts a new group.
"""

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, Self

if TYPE_CHECKING:
    import torch


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

    def __str__(self) -> str:
        return f"{self.host}:{self.port}/{self.world_size}/{self.rank_offset}"


class NcclSender:
    """The trainer's side; used by the trainer's rank 0, whose current CUDA device holds the tensors."""

    def __init__(self) -> None:
        self._group: Any = None

    def init(self, world_size: int, address: str) -> None:
        """Open the group at `address` ("host:port" of this machine); returns when every engine has joined."""
        host, port = address.rsplit(":", 1)
        self._group = self._join(host, int(port), world_size)

    def send(
        self, version: int, tensors: "Iterable[tuple[str, torch.Tensor]]", metadata: Mapping[str, Any]
    ) -> None:
        """Broadcast the weights of `version`; returns when they are sent.

        `metadata` is `manifest.tensor_shapes` of the model's folder, from which the engines know what
        follows; `tensors` must yield those names in that order, whole (not sharded), on the accelerator,
        in the engines' number format. Raises `ValueError` at the first that differs.
        """
        if self._group is None:
            raise RuntimeError("send before init")
        expected = iter(metadata.items())
        for name, tensor in tensors:
            want = next(expected, None)
            if want != (name, tuple(tensor.shape)):
                raise ValueError(
                    f"weights of version {version}: got {name} {tuple(tensor.shape)}, announced {want}"
                )
            self._broadcast(tensor.contiguous())
        if (missing := next(expected, None)) is not None:
            raise ValueError(f"weights of version {version}: {missing[0]} was announced and not sent")
        self._synchronize()

    def close(self) -> None:
        """Leave the group."""
        self._group = None

    def _join(self, host: str, port: int, world_size: int) -> Any:
        import torch
        from vllm.distributed.device_communicators.pynccl import PyNcclCommunicator

        return PyNcclCommunicator(open_store(host, port, world_size), device=torch.cuda.current_device())

    def _broadcast(self, tensor: "torch.Tensor") -> None:
        import torch

        self._group.broadcast(tensor, src=0, stream=torch.cuda.current_stream())

    def _synchronize(self) -> None:
        import torch

        torch.cuda.synchronize()


def open_store(host: str, port: int, world_size: int) -> Any:
    """The rendezvous of a group in which this process is rank 0: a store that the engines connect to."""
    from vllm.distributed.utils import StatelessProcessGroup

    return StatelessProcessGroup.create(host=host, port=port, rank=0, world_size=world_size)
