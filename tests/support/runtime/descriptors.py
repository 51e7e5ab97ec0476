"""A process with many open files, whose next ones have high numbers."""

import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

_BEYOND = 1024
"""What `select` takes is below this."""


@contextmanager
def many_open() -> Iterator[None]:
    """In the body what is opened gets a descriptor that `select` does not take."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _BEYOND + 256
    if hard != resource.RLIM_INFINITY and hard < wanted:
        pytest.skip(f"at most {hard} files may be open")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, wanted), hard))
    opened = [os.open(os.devnull, os.O_RDONLY)]
    try:
        while opened[-1] < _BEYOND:
            opened.append(os.dup(opened[0]))
        yield
    finally:
        for descriptor in opened:
            os.close(descriptor)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
