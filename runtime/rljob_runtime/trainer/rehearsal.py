"""The pass that a trainer makes before its first step, so that what passes need is compiled by then.

Engines take longer to start than a trainer, which would only wait, and compile when the first step's samples
are there. Pure.
"""


def rehearsed(cap: int, longest: int, samples: int) -> list[int]:
    """Lengths of the samples of such a pass, in tokens, of 2 at least: as many tokens as a pass of a step may
    have, since what is compiled depends on their order of size; of different lengths, as a step's are. `cap`:
    the most tokens of a pass; `longest`: of a sample; `samples`: the most that a rank trains in a step."""
    left = min(cap, longest * samples)
    found: list[int] = []
    while left >= 2 and len(found) < samples:
        # In turn the longest, a half of it, a quarter and an eighth.
        length = min(left, max(2, longest >> len(found) % 4))
        found.append(length)
        left -= length
    return found
