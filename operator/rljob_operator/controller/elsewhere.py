"""Namespaces that have an operator of their own, as one that watches all namespaces sees them.

Whoever watches one namespace holds a Lease in it (leadership.py). As long as that is renewed, the jobs there
are that operator's, and none of the one that watches everything.

Guarantees: a namespace is left alone from the moment that its Lease is seen; it is taken back when the Lease
was given back or is gone, or was not renewed for its duration, as a read from the API server confirms: a
watch whose connection is dead tells nothing.
"""

import logging
from collections.abc import Callable

from rljob_client.errors import NotFound
from rljob_client.resources import LEASES
from rljob_operator.controller.leadership import NAMESPACE_LEASE
from rljob_operator.kube.client import ApiClient
from rljob_operator.kube.lease import Lease, lease_record
from rljob_operator.kube.lease_rules import LeaseRecord, Sighting

log = logging.getLogger(__name__)


class Elsewhere:
    """Which namespaces are another operator's."""

    def __init__(self, client: ApiClient, clock: Callable[[], float], changed: Callable[[str], None]) -> None:
        """`clock` in seconds; it only moves forward. `changed`: called with a namespace whose jobs are
        another operator's from now on, or are not any more."""
        self._client = client
        self._clock = clock
        self._changed = changed
        self._sightings: dict[str, Sighting] = {}
        self._left: set[str] = set()

    def seen(self, namespace: str, record: LeaseRecord | None) -> None:
        """This is what the informer has of a namespace's Lease; None: there is none."""
        now, known = self._clock(), self._sightings.get(namespace)
        if record is None:
            self._sightings.pop(namespace, None)
        else:
            new = Sighting(record, now) if known is None else known.updated(record, now)
            self._sightings[namespace] = new
        self._tell(namespace, now)

    def left(self, namespace: str) -> bool:
        """Whether the namespace's jobs are another operator's, as far as is known."""
        return namespace in self._left

    async def wait(self, namespace: str) -> float | None:
        """Seconds for which the namespace's jobs are another operator's, if its Lease is not renewed before;
        None: they are not. Raises `ApiError`."""
        if namespace not in self._left:
            return None
        if self._until(namespace, self._clock()) <= 0:
            await self._look(namespace)
        return max(self._until(namespace, self._clock()), 0.1) if namespace in self._left else None

    async def _look(self, namespace: str) -> None:
        """The Lease has expired, unless the watch has not told of its renewal."""
        try:
            lease = await self._client.get(LEASES, namespace, NAMESPACE_LEASE, Lease)
        except NotFound:
            self.seen(namespace, None)
        else:
            self.seen(namespace, lease_record(lease))

    def _until(self, namespace: str, now: float) -> float:
        sighting = self._sightings.get(namespace)
        return sighting.free_at("") - now if sighting is not None else 0.0

    def _tell(self, namespace: str, now: float) -> None:
        theirs = self._until(namespace, now) > 0
        if theirs == (namespace in self._left):
            return
        if theirs:
            holder = self._sightings[namespace].record.holder
            log.info("the jobs of namespace %s are another operator's: %s", namespace, holder)
            self._left.add(namespace)
        else:
            log.info("namespace %s has no operator of its own any more", namespace)
            self._left.discard(namespace)
        self._changed(namespace)
