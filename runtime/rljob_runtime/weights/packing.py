"""Laying a version's tensors side by side in buckets, on the device that holds them, to be sent.

Guarantees: buckets come in the order, and with the tensors at the places, of `buckets.wire_buckets`; a
bucket's memory is used again two buckets later, in the order of the caller's stream.
"""

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from rljob_runtime.weights.buckets import Bucket, wire_buckets
from rljob_runtime.weights.contents import Shapes

if TYPE_CHECKING:
    import torch


def packed(tensors: "Iterable[tuple[str, torch.Tensor]]", shapes: Shapes) -> "Iterator[torch.Tensor]":
    """The tensors of `shapes`, all of one number format, in their order, as buckets of bytes."""
    import torch

    coming = iter(tensors)
    first = next(coming, None)
    if first is None:
        return
    waiting: list[torch.Tensor] = [first[1]]
    dtype, device = first[1].dtype, first[1].device
    buckets = wire_buckets(shapes, str(dtype).removeprefix("torch."))
    buffers = [
        torch.empty(max(bucket.size for bucket in buckets), dtype=torch.uint8, device=device)
        for _ in range(min(2, len(buckets)))
    ]
    for index, bucket in enumerate(buckets):
        buffer = buffers[index % 2]
        places = _places(buffer[: bucket.size].view(dtype), bucket)
        values = [(waiting.pop() if waiting else next(coming)[1]).reshape(-1) for _ in places]
        with torch.no_grad():
            torch._foreach_copy_(places, values)
        yield buffer[: bucket.size]
    # What follows was not announced, and whoever counts says so.
    for _ in coming:
        pass


def _places(buffer: "torch.Tensor", bucket: Bucket) -> "list[torch.Tensor]":
    """The parts of a buffer that a bucket's tensors go to. One call divides it, as calls for each tensor
    would take as long as its bytes take to be sent."""
    width, end = buffer.element_size(), 0
    sizes: list[int] = []
    tensors: list[int] = []
    for placed in bucket.tensors:
        if placed.begin > end:
            sizes.append((placed.begin - end) // width)
        tensors.append(len(sizes))
        sizes.append(placed.size // width)
        end = placed.begin + placed.size
    parts = buffer.split_with_sizes(sizes)
    return [parts[number] for number in tensors]
