"""Which Ray nodes the trainer's ranks run on.

Guarantees: the trainer starts only when Ray has exactly as many trainer pods as it is to run on
(`driver.trainer_size`), and none of them is being removed or may yet be: once the operator was told that the
trainer stands still, it may remove pods until it has seen the newest size. The ranks of one pod have
consecutive numbers. A wait has a deadline, follows the RLJob when it changes meanwhile, and ends when the job
is to stop. A resize whose pods are not there at its deadline is given up where those before are: it is made
once they are, or the RLJob has changed.
"""

import asyncio
import logging
from collections.abc import Callable

from rljob_runtime.driver.trainer_size import trainer_size
from rljob_runtime.site.site import RESOURCES, Site

log = logging.getLogger(__name__)

_RESOURCE = RESOURCES["trainer"]


class NoTrainerPods(RuntimeError):
    """The trainer's pods did not come."""


class StopAsked(Exception):
    """The job is to stop while it waits for pods."""


class RankPlacement:
    """See the module's guarantees."""

    def __init__(
        self, site: Site, ranks_per_worker: int, seconds: float, stopping: Callable[[], bool]
    ) -> None:
        """A worker is a pod in a cluster. `seconds`: longest wait for a number of workers; `stopping` tells
        whether the job is to stop; the site's change signal is notified when it is."""
        self.workers = 0
        """Trainer workers that ranks were last placed on; 0 before the first time."""
        self._wanted = 0
        """Workers that the trainer is to run on, as it was last looked at."""
        self._given_up: int | None = None
        """Generation of the RLJob whose resize was given up."""
        self._told = False
        """Whether the operator was told that the trainer stands still."""
        self._site = site
        self._ranks_per_worker = ranks_per_worker
        self._seconds = seconds
        self._stopping = stopping

    @property
    def outdated(self) -> bool:
        """Whether the trainer is to run on another number of workers than ranks were last placed on."""
        # 0: nothing has been started yet that would have another size.
        return self.workers not in (0, self._look())

    def nodes(self) -> list[str]:
        """Ids of the Ray nodes that ranks can run on now, once for each rank."""
        return [node.id for node in self._site.table.having(_RESOURCE) for _ in range(node.units(_RESOURCE))]

    async def find(self) -> list[str]:
        """Ids of the nodes to run on, one for each rank, in their order; waits until the pods are there. To
        be called while the trainer is stopped. Raises `NoTrainerPods`, `StopAsked`."""
        while True:
            wanted = self._look()
            # False: another number is asked for by now, which is waited for with a new deadline.
            if await self._have(wanted):
                # Nothing was awaited since the pods were looked at: the table still has the same nodes.
                self.workers = wanted
                return self.nodes()

    def confirmed(self) -> None:
        """The ranks run on the nodes that were found: the operator need not wait any more."""
        self._told = False
        self._site.draft.trainer_stopped_for(None)

    async def drop_lost(self) -> None:
        """After a loss: wait until it is known which nodes are gone."""
        # The driver's own node is there, or nobody would ask.
        suspects = set(self.nodes()) - {self._site.home}
        await asyncio.gather(*(self._site.table.confirm(node) for node in suspects))

    def _look(self) -> int:
        """Workers that the trainer is to run on now."""
        there = len(self.nodes()) // self._ranks_per_worker
        desired = self._site.desired()
        self._wanted = trainer_size(desired, self._wanted, self.workers, there)
        given_up = desired.generation == self._given_up and there != self._wanted
        return self.workers if given_up else self._wanted

    def _tell(self, wanted: int) -> None:
        """Tell the operator, where it may wait for that, that the trainer stands still until there are
        `wanted` workers.

        It may wait before the first start too, where there are pods, but another number of them: the RLJob
        may have been changed since the cluster was made.
        """
        ranks = len(self.nodes())
        unlike = self.workers == 0 and ranks not in (0, wanted * self._ranks_per_worker)
        if self._told or self.outdated or unlike:
            self._told = True
            self._site.draft.trainer_stopped_for(wanted)

    def _ready(self, ranks: int) -> bool:
        """Whether there are pods for exactly `ranks` ranks, and all of them will stay."""
        desired, nodes = self._site.desired(), self._site.table.having(_RESOURCE)
        return (
            len(self.nodes()) == ranks
            and not any(node.pod in desired.doomed for node in nodes)
            # Once told, the operator may begin a removal that an older size asked for.
            and (desired.settled or not self._told)
        )

    async def _have(self, wanted: int) -> bool:
        """Wait for exactly so many workers; False when it is to be another number meanwhile."""
        ranks, site = wanted * self._ranks_per_worker, self._site

        def over() -> bool:
            # At each look, since whether the operator may wait shows only with the pods that come.
            self._tell(wanted)
            return self._stopping() or self._look() != wanted or self._ready(ranks)

        try:
            await site.changes.until(over, self._seconds)
        except TimeoutError:
            words = (
                f"the trainer's pool was to have {wanted} workers within {self._seconds:g} s "
                "(spec.runPolicy.startDeadlineSeconds), and has "
                f"{len(site.table.having(_RESOURCE))}"
            )
            before = self.workers * self._ranks_per_worker
            if self.workers in (0, wanted) or not self._ready(before):
                raise NoTrainerPods(words) from None
            log.warning("%s: training goes on with those, and is resized once the pool is", words)
            self._given_up = site.desired().generation
            return False
        if self._stopping():
            raise StopAsked
        return self._look() == wanted
