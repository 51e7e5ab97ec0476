"""Amounts of memory and disk in words for people. Pure."""

_UNITS = ((2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB"))


def amounts(*counts: int) -> tuple[str, ...]:
    """Numbers of bytes that are to be compared, each with its unit: the largest unit that the largest of them
    reaches and in which those that differ are not rounded to the same."""
    for size, unit in _UNITS:
        words = tuple(f"{count / size:.1f} {unit}" for count in counts)
        if max(counts) >= size and len(set(words)) == len(set(counts)):
            return words
    return tuple(f"{count:,} bytes" for count in counts)
