"""The batch sizes for which an engine captures graphs, its gears: a decode step computes the next larger one.

A step that runs few requests takes little longer than the launch of its kernels, and in the tail of a batch
it runs few for a long time. So the gears are fine where they are small: all of them up to 16, and eight to
each doubling from there on. A step never computes more than an eighth more than what runs. Pure.
"""

_FINE = 16
"""Up to here every size is a gear."""
_PER_DOUBLING = 8
_USUAL_MOST = 512
"""Graphs up to twice the tokens of a full decode step serve steps that prefill short prompts as well, as long
as they are not larger than this: a graph takes memory and, at the engine's start, time."""


def capture_sizes(max_running: int, draft_tokens: int = 0) -> tuple[int, ...]:
    """Batch sizes, in tokens of a step, ascending, for an engine that runs up to `max_running` requests, each
    with its next token and up to `draft_tokens` drafted ones."""
    full = max_running * (1 + draft_tokens)
    most = max(full, min(2 * full, _USUAL_MOST))
    sizes = list(range(1, min(_FINE, most) + 1))
    while sizes[-1] < most:
        # A power of two begins a new doubling.
        sizes.append(sizes[-1] + (1 << (sizes[-1].bit_length() - 1)) // _PER_DOUBLING)
    # A full step computes nothing beyond itself.
    return tuple(sorted({*(size for size in sizes if size <= most), full, most}))
