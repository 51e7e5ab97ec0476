"""The answers to this process's own writes of RayClusters, until a watch has brought something as new.

Guarantees: what is observed of a RayCluster is never older than the operator's own last write to it. A
decision from an older view would take a scale-down that is under way for one that has not begun. One that the
operator deleted counts as being deleted until it is no longer seen: it is deleted once. Pure.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace

from rljob_operator.controller.items import RayClusterItem
from rljob_operator.controller.project import JobRef, cluster
from rljob_operator.plan.observed import Cluster

_EXPECTED_SECONDS = 10.0
"""A RayCluster that was just created is seen within this time, unless it is gone again."""


@dataclass(frozen=True, slots=True)
class SeenCluster:
    """A RayCluster and the resourceVersion that it was read at, which makes no difference by itself."""

    cluster: Cluster
    version: int = field(compare=False)


def seen_cluster(item: RayClusterItem) -> SeenCluster:
    """A RayCluster as the API server has it."""
    return SeenCluster(cluster(item), int(item.metadata.resource_version))


class MutationCache:
    """The answers to the operator's own writes, by job and name, until something as new is seen."""

    def __init__(self) -> None:
        self._written: dict[JobRef, dict[str, tuple[SeenCluster, float]]] = {}
        self._deleted: dict[JobRef, set[str]] = {}

    def created(self, ref: JobRef, answer: SeenCluster, now: float) -> None:
        """The API server has a new RayCluster. `now` in seconds of a clock that only moves forward."""
        self._written.setdefault(ref, {})[answer.cluster.name] = (answer, now + _EXPECTED_SECONDS)

    def changed(self, ref: JobRef, answer: SeenCluster) -> None:
        """A RayCluster that was seen before has been changed."""
        self._written.setdefault(ref, {})[answer.cluster.name] = (answer, 0.0)

    def deleted(self, ref: JobRef, uid: str) -> None:
        """The API server deletes, or has deleted, the RayCluster of this UID."""
        self._deleted.setdefault(ref, set()).add(uid)

    def forget(self, ref: JobRef) -> None:
        """The job is gone."""
        self._written.pop(ref, None)
        self._deleted.pop(ref, None)

    def newest(self, ref: JobRef, seen: Iterable[SeenCluster], now: float) -> tuple[Cluster, ...]:
        """The job's RayClusters: each as it was seen or as it was written, whichever is newer."""
        clusters = tuple(self._merged(ref, {each.cluster.name: each for each in seen}, now))
        # A UID never comes back: what is not seen any more is done with.
        deleted = self._deleted.get(ref, set()) & {cluster.uid for cluster in clusters}
        if deleted:
            self._deleted[ref] = deleted
        else:
            self._deleted.pop(ref, None)
        return tuple(replace(each, deleting=True) if each.uid in deleted else each for each in clusters)

    def _merged(self, ref: JobRef, seen: Mapping[str, SeenCluster], now: float) -> Iterator[Cluster]:
        written = self._written.get(ref, {})
        for name, (answer, until) in list(written.items()):
            there = seen.get(name)
            # One that is not seen was deleted, unless it was created a moment ago and is yet to be seen.
            if now >= until if there is None else there.version >= answer.version:
                del written[name]
        if not written:
            self._written.pop(ref, None)
        for name, each in seen.items():
            yield written[name][0].cluster if name in written else each.cluster
        yield from (answer.cluster for name, (answer, _) in written.items() if name not in seen)
