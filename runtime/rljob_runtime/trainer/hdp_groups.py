"""Groups of ranks that share samples: every aligned range of 2, 4, … ranks has a process group of its own.

Guarantees: all ranks make the groups in the same order, and each is used once before a step needs it, since
communication libraries connect at a group's first use, which takes seconds.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist


@dataclass(frozen=True)
class Members:
    """The ranks that share a forward and backward pass, as one of them sees them."""

    degree: int
    """How many they are; a power of two, at least 2."""
    position: int
    """This rank's place among them, from 0."""
    group: Any
    """Their process group."""


class HdpGroups:
    """The groups that this rank is a member of."""

    def __init__(self, largest_degree: int, device: torch.device, backend: str, timeout: timedelta) -> None:
        """All ranks call it together. `backend` communicates for `device`; a collective call that takes
        longer than `timeout` raises."""
        rank, world_size = dist.get_rank(), dist.get_world_size()
        self._members: dict[int, Members] = {}
        for degree in degrees(world_size, largest_degree):
            for first in range(0, world_size - degree + 1, degree):
                group = dist.new_group(list(range(first, first + degree)), timeout=timeout, backend=backend)
                if first <= rank < first + degree:
                    self._members[degree] = Members(degree, rank - first, group)
        # Groups of one degree are disjoint, so that no two ranks wait for each other in different groups.
        for members in self._members.values():
            dist.all_reduce(torch.ones(1, device=device), group=members.group)

    def __contains__(self, degree: int) -> bool:
        return degree in self._members

    def of(self, degree: int) -> Members:
        """This rank's group of `degree` ranks."""
        return self._members[degree]


def degrees(world_size: int, largest_degree: int) -> Iterator[int]:
    """The degrees above 1 that a world has room for: 2, 4, … up to `largest_degree`."""
    degree = 2
    while degree <= min(world_size, largest_degree):
        yield degree
        degree *= 2
