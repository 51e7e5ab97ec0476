"""Which data and which part of every layer a rank of the trainer has.

With tensor parallelism `tensor` neighbours by number are one tensor group: they put the same samples through
the model, each with its part of every layer. Groups are to batches what single ranks are without it, so that
whatever splits or counts samples counts data ranks. Pure.

With 8 ranks and groups of 2:

    rank          0  1  2  3  4  5  6  7
    data rank     0  0  1  1  2  2  3  3
    tensor rank   0  1  0  1  0  1  0  1
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

TENSOR = "tensor"
"""Name of the mesh's dimension along which the ranks of a tensor group lie."""
_SHARD, _REPLICATE = "shard", "replicate"
_DIVIDED = ("num_attention_heads", "num_key_value_heads")
"""What each rank of a tensor group has an equal part of, by its name in a model's config.json."""
_WIDTH = "intermediate_size"
"""The same of a model without experts; of one with experts it may be that of each expert, or of no layer."""
_EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")
_FIELD = "training.parallel.tensorParallel"


class Mesh(NamedTuple):
    """The ranks as a grid, in the order of their numbers."""

    shape: tuple[int, ...]
    names: tuple[str, ...]
    """Of the dimensions: `shard` is the one over which each copy of a model's state is spread, `replicate`
    the one of its copies, and `TENSOR`."""

    @property
    def of_state(self) -> tuple[str, ...]:
        """The dimensions along which ranks have different samples."""
        return tuple(name for name in self.names if name != TENSOR)


@dataclass(frozen=True)
class RankLayout:
    """Where a rank stands among all."""

    rank: int
    ranks: int
    tensor: int = 1
    """Ranks of a tensor group; divides `ranks`."""

    def __post_init__(self) -> None:
        if self.tensor < 1 or self.ranks % self.tensor or not 0 <= self.rank < self.ranks:
            raise ValueError(f"rank {self.rank} of {self.ranks} in tensor groups of {self.tensor}")

    @property
    def data_rank(self) -> int:
        """Which part of every batch it trains."""
        return self.rank // self.tensor

    @property
    def data_ranks(self) -> int:
        """How many parts batches have."""
        return self.ranks // self.tensor

    @property
    def tensor_rank(self) -> int:
        """Which part of every layer it has."""
        return self.rank % self.tensor

    @property
    def reports(self) -> bool:
        """Whether it counts what all ranks of its tensor group have alike."""
        return self.tensor_rank == 0

    def data_rank_of(self, rank: int) -> int:
        """That of another rank."""
        return rank // self.tensor

    def mesh(self, group: int | None) -> Mesh:
        """The grid where `group` ranks, or all, hold one copy of a model's state together. Raises
        `ValueError` where they are no whole number of tensor groups, or do not divide the ranks."""
        group = group or self.ranks
        if self.ranks % group or group % self.tensor:
            raise ValueError(
                f"{group} of {self.ranks} ranks hold a copy together, in tensor groups of {self.tensor}"
            )
        shape: tuple[int, ...] = (group // self.tensor,)
        names: tuple[str, ...] = (_SHARD,)
        if group < self.ranks:
            shape, names = (self.ranks // group, *shape), (_REPLICATE, *names)
        return Mesh(shape, names) if self.tensor == 1 else Mesh((*shape, self.tensor), (*names, TENSOR))

    def sharing(self, largest_degree: int) -> Iterator[tuple[int, ...]]:
        """The ranks of every group that can share samples, up to `largest_degree` of them: 2, 4, … data ranks
        that follow one another, aligned to their number, by one rank of each, namely those that have the same
        part of every layer. The same on all ranks, in one order."""
        degree = 2
        while degree <= min(self.data_ranks, largest_degree):
            for first in range(0, self.data_ranks - degree + 1, degree):
                for part in range(self.tensor):
                    yield tuple((first + each) * self.tensor + part for each in range(degree))
            degree *= 2


def unfit(tensor: int, config: Mapping[str, Any]) -> str | None:
    """Why a model cannot be split over `tensor` ranks, and what it can be; None where it can. `config`: what
    its config.json says of the part of the model that reads and writes text (`weights.model_files`)."""
    if tensor == 1:
        return None
    divided = (*_DIVIDED, *(experts_of(config) or (_WIDTH,)))
    numbers = {name: config[name] for name in divided if isinstance(config.get(name), int)}
    wrong = [f"{name} {number}" for name, number in numbers.items() if number % tensor]
    if not wrong:
        return None
    common = math.gcd(*numbers.values())
    allowed = ", ".join(str(each) for each in range(1, common + 1) if common % each == 0)
    what = f"{_FIELD} is {tensor}, which does not divide the model's {' and '.join(wrong)}"
    return f"{what} (config.json): set one of {allowed}"


def experts_of(config: Mapping[str, Any]) -> tuple[str, ...]:
    """The names under which a config.json says how many experts a layer has; none where it has none."""
    return tuple(name for name in _EXPERTS if config.get(name))


def expert_count(config: Mapping[str, Any]) -> int:
    """How many experts a layer has by a config.json; 0 where it has none, or gives no single number."""
    said = (config[name] for name in experts_of(config))
    return next((number for number in said if isinstance(number, int)), 0)
