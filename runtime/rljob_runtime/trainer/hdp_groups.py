"""Groups of ranks that share samples: each has a process group of its own. Which ranks may share some is in
`parallel.rank_layout`.

Guarantees: all ranks make the groups in the same order, and each is used once before a step needs it, since
communication libraries connect at a group's first use, which takes seconds.
"""

from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from rljob_runtime.parallel.rank_layout import RankLayout


@dataclass(frozen=True)
class Members:
    """The ranks that share a forward and backward pass, as one of them sees them."""

    degree: int
    """How many they are; a power of two, at least 2. With tensor groups each shares it for its own part of
    the layers, with ranks that have the same."""
    position: int
    """This rank's place among them, from 0."""
    group: Any
    """Their process group."""


class HdpGroups:
    """The groups that this rank is a member of."""

    def __init__(
        self,
        layout: RankLayout,
        largest_degree: int,
        device: torch.device,
        backend: str,
        timeout: timedelta,
    ) -> None:
        """All ranks call it together, each with its own `layout`. `backend` communicates for `device`; a
        collective call that takes longer than `timeout` raises."""
        self._members: dict[int, Members] = {}
        for ranks in layout.sharing(largest_degree):
            group = dist.new_group(list(ranks), timeout=timeout, backend=backend)
            if layout.rank in ranks:
                self._members[len(ranks)] = Members(len(ranks), ranks.index(layout.rank), group)
        # Groups of one degree are disjoint, so that no two ranks wait for each other in different groups.
        for members in self._members.values():
            dist.all_reduce(torch.ones(1, device=device), group=members.group)

    def __contains__(self, degree: int) -> bool:
        return degree in self._members

    def of(self, degree: int) -> Members:
        """This rank's group of `degree` ranks."""
        return self._members[degree]
