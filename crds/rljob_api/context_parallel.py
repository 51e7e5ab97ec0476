"""Whether ranks of the trainer share samples: the `training.parallel.contextParallel` block of an RLJob."""

from typing import ClassVar, Literal

from pydantic import Field

from rljob_api.base import Model, OneOf, Rule

DEGREES = (2, 4, 8, 16, 32, 64, 128, 256)
"""How many ranks, or tensor groups, may share a sample."""


def _power_of_two(path: str, name: str) -> Rule:
    among = f"self.{path} in {list(DEGREES)}"
    return Rule(
        message=f"{path} must be a power of two: {', '.join(map(str, DEGREES))}",
        cel=f"!has(self.{path}) || {among}",
        holds=lambda self: getattr(self, name) is None or getattr(self, name) in DEGREES,
        fields=(path,),
    )


class SharedByNone(Model):
    """Every sample on one rank."""


class SharedByAll(Model):
    """Every sample shared by equally many ranks: static context parallelism."""

    degree: int = Field(ge=2, le=256)
    """Ranks that share a sample: a power of two, and no more than the trainer has. Where it does not divide
    them, those beyond the last whole group have nothing to train. With parallel.tensorParallel above 1 the
    groups of so many ranks that share a sample, whose ranks each attend to it with their own heads."""

    rules: ClassVar[tuple[Rule, ...]] = (_power_of_two("degree", "degree"),)


class SharedByNeed(Model):
    """Each sample on as many ranks as make the slowest rank end soonest: hybrid data and context
    parallelism."""

    largest_degree: int | None = Field(default=None, ge=2, le=256)
    """Most ranks that share a sample: a power of two. Default: the largest that the trainer has room for.
    Ranks that share samples exchange keys and values in every layer, so let it not exceed those of a node.
    With parallel.tensorParallel above 1 the groups of so many ranks that share a sample."""

    rules: ClassVar[tuple[Rule, ...]] = (_power_of_two("largestDegree", "largest_degree"),)


class ContextParallel(OneOf):
    """Which samples are shared by several ranks of the trainer. Where any are, each rank holds all weights of
    the model in the format of `model.dtype`, and all gradients in float32, during an update; optimizer
    states stay sharded."""

    one_of: ClassVar[tuple[str, ...]] = ("none", "fixed", "hybrid")

    none: SharedByNone | None = None
    """No sample is shared."""
    fixed: SharedByAll | None = None
    """Every sample is shared."""
    hybrid: SharedByNeed | None = None
    """Long samples are shared, short ones are packed on one rank each."""
    attention: Literal["auto", "allGather", "ulysses"] = "auto"
    """How ranks that share samples compute attention. allGather: each gets the keys and values of all tokens.
    ulysses: they exchange tokens for heads; the ranks that share a sample must divide the model's attention
    heads, with parallel.tensorParallel above 1 those of each rank. auto: what has less to send, by the
    model's heads and the ranks that share."""

    def largest_degree(self, ranks: int) -> int:
        """Most ranks that may share a sample, of a trainer with so many data ranks."""
        if self.none is not None:
            return 1
        if self.fixed is not None:
            return self.fixed.degree
        assert self.hybrid is not None
        return min(self.hybrid.largest_degree or ranks, 1 << (ranks.bit_length() - 1), DEGREES[-1])
