"""The batch sizes for which an engine captures graphs, its gears: a decode step computes the next larger one.

A step that runs few requests takes little longer than the launch of its kernels, and in the tail of a batch
it runs few for a long time. So the gears are fine where they are small: all of them up to 16, and eight to
each doubling from there on. A step never computes more than an eighth more than what runs. Pure.
"""

_FINE = 16
"""Up to here every size is a gear."""
_PER_DOUBLING = 8
_MOST, _LEAST, _BESIDE = 2048, 512, 4
"""Steps that compute prompts beside running requests have graphs as well, up to so many times the tokens of a
full decode step, within these bounds. On an H200 with 512 requests such a step took twice as long without one
(docs/measurements.md). Larger ones wait for the arithmetic and not for the launch of kernels; a graph takes
memory and, at the engine's start, time."""


def capture_sizes(max_running: int, draft_tokens: int = 0) -> tuple[int, ...]:
    """Batch sizes, in tokens of a step, ascending, for an engine that runs up to `max_running` requests, each
    with its next token and up to `draft_tokens` drafted ones."""
    full = max_running * (1 + draft_tokens)
    sizes = sizes_up_to(max(full, min(_MOST, max(_LEAST, _BESIDE * full))))
    # A full step computes nothing beyond itself.
    return tuple(sorted({*sizes, full}))


def sizes_up_to(most: int) -> tuple[int, ...]:
    """Every size up to 16 and eight to each doubling beyond, up to `most`, which is the last; ascending."""
    sizes = list(range(1, min(_FINE, most) + 1))
    while sizes[-1] < most:
        # A power of two begins a new doubling.
        sizes.append(sizes[-1] + (1 << (sizes[-1].bit_length() - 1)) // _PER_DOUBLING)
    return (*(size for size in sizes if size < most), most)
