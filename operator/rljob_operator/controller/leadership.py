"""Which of all operators in a cluster works.

Replicas of a release agree by a Lease of the release's namespace. Releases agree by a Lease of what they
watch: one of the watched namespace, or one of the whole cluster.

Guarantees: of all operators that watch all namespaces, or the same one, one process writes at a time,
whatever release it is of; the others wait as its replicas do, and one goes on as soon as it is gone.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from rljob_operator.kube.fence import Fence
from rljob_operator.kube.lease import LeaderElection

CLUSTER_LEASE = "rljob-operator-cluster"
"""Name of the Lease of operators that watch all namespaces."""
NAMESPACE_LEASE = "rljob-operator-namespace"
"""Name of the Lease, in a namespace, of operators that watch it alone."""


class Leadership:
    """A process's part in both."""

    def __init__(self, replicas: LeaderElection, releases: LeaderElection) -> None:
        self._replicas = replicas
        self._releases = releases

    @property
    def trouble(self) -> str | None:
        """Why one of the Leases cannot be asked for; None where it can."""
        return self._replicas.trouble or self._releases.trouble

    @asynccontextmanager
    async def held(self) -> AsyncIterator[tuple[Fence, Fence]]:
        """Wait for both Leases, keep them while the body runs, give them back. The body's writes go through
        both fences. Raises `LeaseLost`."""
        # A replica without the right to must not take the release's Lease from one that works.
        await self._releases.look()
        async with (
            self._replicas.held() as replica,
            # Who held both, and has lost the first, writes no more: its second is not waited for.
            self._releases.held(self._replicas.predecessor) as release,
        ):
            yield replica, release
