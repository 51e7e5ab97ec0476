"""Where tests of two ranks over NCCL run: on two NVIDIA accelerators, each in a process of its own.

With `RLJOB_TESTS_OVER_GLOO` set they run on CPUs, over gloo, so that the tests themselves can be tried on any
machine.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

import pytest
import torch

ACCELERATOR: Literal["cpu", "nvidia"] = "cpu" if os.environ.get("RLJOB_TESTS_OVER_GLOO") else "nvidia"

needs_two = pytest.mark.skipif(
    ACCELERATOR == "nvidia" and torch.cuda.device_count() < 2, reason="needs two NVIDIA accelerators"
)


def device_of(rank: int) -> int:
    """The number of a rank's device among those that its process sees."""
    return rank if ACCELERATOR == "nvidia" else 0


@contextmanager
def waits_refused() -> Iterator[None]:
    """In the body every operation of torch that waits for the device raises, on any thread."""
    refuse_waits(True)
    try:
        yield
    finally:
        refuse_waits(False)


def refuse_waits(refuse: bool) -> None:
    """Whether such operations raise from now on. Does nothing on CPUs."""
    if ACCELERATOR == "nvidia":
        torch.cuda.set_sync_debug_mode("error" if refuse else "default")
