"""A rank of the trainer that is begun before it is known what it is to train: it imports meanwhile what ranks
need.

Guarantees: told what it is (`begin`), it is what a rank is that was started with that; what cannot be
imported is told where it is needed.
"""

from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from rljob_runtime.site.own_start import PROCESS, OwnStart, created
from rljob_runtime.trainer import rank_actor


class TrainerActor(rank_actor.TrainerActor):
    """See the module's guarantees; `start_early_rank` makes a Ray actor of it, whose process is called as
    that of any other rank."""

    def __init__(self, rank: int) -> None:
        self._rank = rank
        self._early = OwnStart()
        self._early.process(PROCESS, created())
        # Whatever keeps it from being imported: it is to stand in the rank's log, which is not known yet.
        with self._early.part("imports"), suppress(Exception):
            rank_actor.import_needed()

    def begin(self, specs: Sequence[bytes]) -> None:
        """Be the rank that `rank_actor.TrainerActor` makes of its own of these `TrainerSpec`s, a rank's each;
        once, before anything else is asked."""
        super().__init__(specs[self._rank])
        # To the rank its process ends here; what was imported in it before is told apart.
        self._early.add(each for each in self._start.parts if each.part != PROCESS)
        self._start = self._early


def start_early_rank(rank: int, **options: Any) -> Any:
    """A handle of an actor with such a rank; `options` are Ray's for actors (resources, ...)."""
    import ray

    return ray.remote(**options)(TrainerActor).remote(rank)
