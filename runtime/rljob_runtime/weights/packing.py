"""Laying a version's tensors side by side in buckets, on the device that holds them, to be sent.

Guarantees: buckets come in the order, and with the tensors at the places, of `buckets.wire_buckets`; a
bucket's memory is used again `IN_TURNS` buckets later, in the order of the caller's stream.
"""

from collections import deque
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from rljob_runtime.weights.buckets import Bucket, wire_buckets
from rljob_runtime.weights.contents import Shapes
from rljob_runtime.weights.formats import is_correction

if TYPE_CHECKING:
    import torch

IN_TURNS = 2
"""Buffers that buckets have in turns."""


def packed(tensors: "Iterable[tuple[str, torch.Tensor]]", shapes: Shapes) -> "Iterator[torch.Tensor]":
    """The tensors of `shapes`, in their order, as buckets of bytes; each has the number format that
    `weights.formats` has for it."""
    import torch

    coming = iter(tensors)
    waiting: deque[torch.Tensor] = deque()
    for name, tensor in coming:
        waiting.append(tensor)
        # The first of the others has the job's format.
        if not is_correction(name):
            break
    if not waiting:
        return
    dtype, device = waiting[-1].dtype, waiting[-1].device
    buckets = wire_buckets(shapes, str(dtype).removeprefix("torch."))
    buffers = [
        torch.empty(max(bucket.size for bucket in buckets), dtype=torch.uint8, device=device)
        for _ in range(min(IN_TURNS, len(buckets)))
    ]
    for index, bucket in enumerate(buckets):
        buffer = buffers[index % IN_TURNS]
        places = _places(buffer[: bucket.size].view(dtype), bucket)
        values = [(waiting.popleft() if waiting else next(coming)[1]).reshape(-1) for _ in places]
        with torch.no_grad():
            for form in {place.dtype for place in places}:
                # Of one format each: a call with several would copy one tensor after the other.
                chosen = [number for number, place in enumerate(places) if place.dtype == form]
                torch._foreach_copy_([places[each] for each in chosen], [values[each] for each in chosen])
        yield buffer[: bucket.size]
    # What follows was not announced, and whoever counts says so.
    for _ in coming:
        pass


def _places(buffer: "torch.Tensor", bucket: Bucket) -> "list[torch.Tensor]":
    """The parts of a buffer that a bucket's tensors go to. One call divides it, as calls for each tensor
    would take as long as its bytes take to be sent."""
    import torch

    width, common, end = buffer.element_size(), str(buffer.dtype).removeprefix("torch."), 0
    sizes: list[int] = []
    tensors: list[int] = []
    for placed in bucket.tensors:
        if placed.begin > end:
            sizes.append((placed.begin - end) // width)
        tensors.append(len(sizes))
        sizes.append(placed.size // width)
        end = placed.begin + placed.size
    parts = buffer.split_with_sizes(sizes)
    return [
        parts[number] if placed.dtype == common else parts[number].view(getattr(torch, placed.dtype))
        for number, placed in zip(tensors, bucket.tensors, strict=True)
    ]
