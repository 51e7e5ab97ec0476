"""How the process treats the memory of payload frames.

Guarantees: after `reuse_freed_memory` buffers of up to 32 MiB are taken from memory that was freed before,
where the C library is glibc; elsewhere nothing changes.
"""

_LARGEST_THRESHOLD = 32 * 2**20
"""Bytes: glibc's DEFAULT_MMAP_THRESHOLD_MAX on 64-bit systems."""
_OVERHEAD = 8192
"""Bytes that the allocator and Python add to a buffer, at most."""


def reuse_freed_memory() -> None:
    """Keep freed memory in the process: up to 64 MiB at the top of each heap.

    Otherwise each frame is mapped from the kernel, page by page, and given back, which costs the queue about
    as much time as copying it. glibc takes the largest mapped buffer that was freed, up to 32 MiB, for a size
    that comes again, and from then on serves buffers up to that size from its heaps and trims these at twice
    the size (mallopt(3), M_MMAP_THRESHOLD). So one buffer, never touched, suffices; limits that the user set
    by environment variables stay.
    """
    bytes(_LARGEST_THRESHOLD - _OVERHEAD)
