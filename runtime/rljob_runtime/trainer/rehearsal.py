"""The passes that a trainer makes before its first step, so that what passes need is compiled by then.

Engines take longer to start than a trainer, which would only wait, and compile when the first step's samples
are there, or when ranks first share a pass as it did not happen before. Pure.
"""

from collections.abc import Collection

from rljob_api.context_parallel import ContextParallel


def rehearsed_degrees(asked: ContextParallel, ranks: int) -> list[int]:
    """How many of `ranks` data ranks share a pass, in turn: whatever a step may need."""
    largest = asked.largest_degree(ranks)
    if asked.fixed is not None:
        return [largest]
    return [1 << level for level in range(largest.bit_length())]


def rehearsed(cap: int, longest: int, samples: int, sizes: Collection[int] = ()) -> list[int]:
    """Lengths of the samples of such a pass, in tokens, of 2 at least: as many tokens as a pass of a step may
    have, since what is compiled depends on their order of size; of different lengths, as a step's are. `cap`:
    the most tokens of a pass; `longest`: of a sample; `samples`: the most that those who share the pass train
    in a step. Their tokens are not one of `sizes`, such as the model's width: what is compiled where two
    sizes are the same serves no other pass."""
    left = min(cap, longest * samples)
    while left in sizes:
        left -= 1
    found: list[int] = []
    while left >= 2 and len(found) < samples:
        # In turn the longest, a half of it, a quarter and an eighth.
        length = min(left, max(2, longest >> len(found) % 4))
        found.append(length)
        left -= length
    return found
