"""Leader election: of all replicas, one writes.

Guarantees:
- `held` is entered by one replica at a time, and its fence closes before another one can enter, also for a
  replica that is cut off from the API server, is stopped for a while, or whose loop hangs;
- when the lease is lost the body is cancelled and `LeaseLost` is raised; what it still tries to write through
  the fence is refused;
- a replica that leaves gives the lease back once its writes have ended, and one that waits takes it at once;
- a lease that is owned by a Role of its holder's release goes with that release.

The lease is a coordination.k8s.io/v1 Lease, as Kubernetes' own components use it: `kubectl get lease` shows
the holder. A process that is frozen in the instant between the fence and the network can still send one write
when it wakes; preconditions on the objects themselves are what catches that.
"""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime
from random import Random
from typing import Any

import msgspec

from rljob_client.client import ClientSettings
from rljob_client.errors import AlreadyExists, ApiError, Conflict, Forbidden, NotFound
from rljob_client.objects import Item
from rljob_client.resources import LEASES, ROLES
from rljob_client.retry import NO_RETRY
from rljob_client.transport import Transport
from rljob_operator.kube.client import ApiClient
from rljob_operator.kube.fence import Fence, LeaseLost
from rljob_operator.kube.lease_rules import LeaseRecord, LeaseTiming, Sighting
from rljob_operator.kube.observer import KubeObserver

_log = logging.getLogger(__name__)

_ATTEMPTS_PER_DEADLINE = 3
"""A renewal without an answer is given up after a third of the deadline: there is time for another one."""


_ROLE = {"apiVersion": ROLES.api_version, "kind": ROLES.kind}


class LeaseSpec(msgspec.Struct, rename="camel"):
    """Who holds a lease, and since when it is renewed."""

    holder_identity: str | None = None
    lease_duration_seconds: int | None = None
    renew_time: str | None = None
    lease_transitions: int | None = None


class Lease(Item):
    """A Lease as the API server has it."""

    spec: LeaseSpec = msgspec.field(default_factory=LeaseSpec)


class LeaderElection:
    """One replica's part in it."""

    def __init__(
        self,
        transport: Transport,
        namespace: str,
        name: str,
        identity: str,
        observer: KubeObserver,
        random: Random,
        timing: LeaseTiming | None = None,
        clock: Callable[[], float] = time.monotonic,
        today: Callable[[], datetime] = lambda: datetime.now(UTC),
        tells: bool = True,
        role: str | None = None,
    ) -> None:
        """`namespace`, `name`: of the Lease. `identity`: of this process, never used by another, not even by
        the one that runs after it in the same pod. `clock` is what the fence goes by. `tells`: whether
        `observer` hears who leads; not where another lease is needed for that, too. `role`: name of the Role
        in `namespace` that owns the Lease from when it is taken; None: nobody does."""
        self._timing = timing or LeaseTiming()
        # Neither other writes nor retries may delay a renewal.
        settings = ClientSettings(
            "rljob-operator", self._timing.renew_deadline / _ATTEMPTS_PER_DEADLINE, NO_RETRY
        )
        self._client = ApiClient(transport, observer, settings, random)
        self._namespace = namespace
        self._name = name
        self._identity = identity
        self._observer = observer
        self._random = random
        self._clock = clock
        self._today = today
        self._tells = tells
        self._role = role
        self._seen: Sighting | None = None
        self._ended = ""
        self._told = ""
        self.predecessor = ""
        """Identity of the process that the lease was taken from; empty where it was free."""
        self.trouble: str | None = None
        """Why the lease cannot be asked for; None where it can."""

    async def look(self) -> None:
        """Return once the API server lets the lease be read. Until then `trouble` says why it does not."""
        while True:
            try:
                await self._read()
            except NotFound:
                break
            except ApiError as error:
                await self._try_again(error)
            else:
                break
        self.trouble = None

    @asynccontextmanager
    async def held(self, ended: str = "") -> AsyncIterator[Fence]:
        """Wait for the lease, keep it while the body runs, give it back. The body's writes go through the
        fence (`ApiClient.fenced`). `ended`: identity of a process that is known to write no more, whose lease
        is not waited for. Raises `LeaseLost` where the lease was lost meanwhile."""
        self._ended = ended
        record, fence = await self._acquire()
        _log.info("%s holds lease %s/%s", self._identity, self._namespace, self._name)
        self._leads(True)
        body = asyncio.current_task()
        assert body is not None
        cancelled_before = body.cancelling()
        interrupted = leaving = False

        def interrupt(keeper: "asyncio.Task[None]") -> None:
            nonlocal interrupted
            if leaving:
                return
            interrupted = True
            ended = "was cancelled" if keeper.cancelled() else f"failed: {keeper.exception()!r}"
            fence.close(f"its keeper {ended}")
            self._leads(False)
            body.cancel()

        keeper = asyncio.create_task(self._keep(record, fence))
        keeper.add_done_callback(interrupt)
        try:
            yield fence
        except asyncio.CancelledError:
            # Somebody else may want the body to end as well: then it is theirs.
            if interrupted and body.cancelling() == cancelled_before + 1:
                raise LeaseLost(f"lease {self._namespace}/{self._name}: {fence.closed}") from None
            raise
        finally:
            leaving = True
            if interrupted:
                body.uncancel()
            else:
                await self._give_back(keeper, fence)

    # Taking

    async def _acquire(self) -> tuple[LeaseRecord, Fence]:
        while True:
            try:
                # Counted from the sending: the others count from when they see the renewal, which is later.
                sent = self._clock()
                if (record := await self._take_if_free()) is not None:
                    self.trouble = None
                    return record, Fence(sent + self._timing.renew_deadline, self._clock)
                if await self._await_turn():
                    continue
            except (AlreadyExists, Conflict):
                _log.debug("another replica was quicker")
                await self._pause()
            except ApiError as error:
                await self._try_again(error)
            else:
                await self._pause()

    async def _try_again(self, error: ApiError) -> None:
        # Once: it is tried every few seconds for as long as the API server is away.
        level = logging.DEBUG if str(error) == self.trouble else logging.WARNING
        self.trouble = str(error)
        _log.log(level, "%s; the lease is tried again", error)
        await self._pause()

    async def _pause(self) -> None:
        # Spread, for replicas that found the lease free together would try together again.
        await asyncio.sleep(self._timing.retry * (0.5 + self._random.random()))

    def _leads(self, holds_lease: bool) -> None:
        if self._tells:
            self._observer.leads(holds_lease)

    async def _take_if_free(self) -> LeaseRecord | None:
        """The lease, as this replica's; None while it is another's."""
        self.predecessor = ""
        try:
            record = await self._read()
        except NotFound:
            return await self._make()
        now = self._clock()
        self._seen = Sighting(record, now) if self._seen is None else self._seen.updated(record, now)
        if now < self._seen.free_at(self._identity, self._ended):
            self._waits(record.holder)
            return None
        self.predecessor = record.holder
        return await self._write(self._client, record, took=True, owners=await self._owners())

    def _waits(self, holder: str) -> None:
        self.trouble = None
        if holder != self._told:
            _log.info("lease %s/%s is held by %s: waiting for it", self._namespace, self._name, holder)
            self._told = holder

    async def _await_turn(self) -> bool:
        """Whether the lease was given back, was deleted, or has not been renewed for its duration. False when
        the API server ended the watch before that."""
        assert self._seen is not None
        loop = asyncio.get_running_loop()
        with suppress(TimeoutError):
            async with asyncio.timeout(self._until_free(self._seen)) as limit:
                # From the present on, and beginning with it: the lease's own version may be older than
                # what an API server that has just started remembers.
                async with self._client.watch(
                    LEASES,
                    Lease,
                    "",
                    namespace=self._namespace,
                    field_selector=f"metadata.name={self._name}",
                ) as changes:
                    async for change in changes:
                        if change.item is None:
                            continue
                        if change.kind == "DELETED":
                            return True
                        self._seen = self._seen.updated(lease_record(change.item), self._clock())
                        left = self._until_free(self._seen)
                        if left <= 0:
                            return True
                        limit.reschedule(loop.time() + left)
                    return False
        return True

    def _until_free(self, seen: Sighting) -> float:
        return seen.free_at(self._identity, self._ended) - self._clock()

    # Keeping

    async def _keep(self, record: LeaseRecord, fence: Fence) -> None:
        """Renew until the fence is closed."""
        client = self._client.fenced(fence)
        while fence.closed is None:
            await asyncio.sleep(min(self._timing.retry, max(0.0, fence.deadline - self._clock())))
            sent = self._clock()
            outcome = "failed"
            try:
                record = await self._write(client, record, took=False)
                fence.extend(sent + self._timing.renew_deadline)
                outcome = "done"
            except Conflict:
                # Perhaps somebody edited it and left the holder: then it is renewed from there.
                record = await self._reread(fence) or record
            except NotFound:
                fence.close("it was deleted")
            except LeaseLost:
                outcome = "done"
            except ApiError as error:
                left = fence.deadline - self._clock()
                _log.warning("%s; the lease was not renewed, %.1f s are left", error, left)
            self._observer.lease_renewed(outcome)

    async def _reread(self, fence: Fence) -> LeaseRecord | None:
        """Somebody wrote to the lease: close the fence if they took it. The record, if they did not."""
        try:
            async with asyncio.timeout(fence.deadline - self._clock()):
                record = await self._read()
        except NotFound:
            fence.close("it was deleted")
        except (ApiError, TimeoutError) as error:
            _log.warning("%s; cannot see who wrote to the lease", error or "no answer in time")
        else:
            if record.holder == self._identity:
                return record
            fence.close(f"{record.holder or 'nobody'} has it now")
        return None

    async def _give_back(self, keeper: "asyncio.Task[None]", fence: Fence) -> None:
        keeper.cancel()
        await asyncio.gather(keeper, return_exceptions=True)
        left = fence.deadline - self._clock()
        fence.close("it was given back")
        self._leads(False)
        try:
            # First the writes that are under way: the next holder writes as soon as the lease is free.
            async with asyncio.timeout(left):
                await fence.drained()
            record = await self._read()
            if record.holder == self._identity:
                # Without a holder nobody waits for the end of the lease's duration.
                await self._patch(self._client, record.version, {"holderIdentity": None})
        except (ApiError, TimeoutError) as error:
            _log.warning(
                "the lease was not given back, it expires by itself: %s", error or "writes are under way"
            )

    # The object

    async def _read(self) -> LeaseRecord:
        return lease_record(await self._client.get(LEASES, self._namespace, self._name, Lease))

    async def _make(self) -> LeaseRecord:
        lease = {
            "apiVersion": LEASES.api_version,
            "kind": LEASES.kind,
            "metadata": {"namespace": self._namespace, "name": self._name, **await self._owners()},
            "spec": self._spec(transitions=0, took=True),
        }
        return lease_record(msgspec.convert(await self._client.create(lease), Lease))

    async def _owners(self) -> dict[str, Any]:
        """The metadata by which the Lease goes when its Role does; empty where that is not to be had."""
        if self._role is None:
            return {}
        try:
            role = await self._client.get(ROLES, self._namespace, self._role, Item)
        except (Forbidden, NotFound) as error:
            _log.info("%s; lease %s/%s has no owner", error, self._namespace, self._name)
            return {}
        return {"ownerReferences": [{**_ROLE, "name": self._role, "uid": role.metadata.uid}]}

    async def _write(
        self, client: ApiClient, record: LeaseRecord, took: bool, owners: Mapping[str, Any] | None = None
    ) -> LeaseRecord:
        """Renew, or take from whoever had it; `Conflict` when it is not `record` any more."""
        handed_over = took and record.holder != self._identity
        spec = self._spec(record.transitions + handed_over, took)
        return await self._patch(client, record.version, spec, owners)

    async def _patch(
        self, client: ApiClient, version: str, spec: dict[str, Any], owners: Mapping[str, Any] | None = None
    ) -> LeaseRecord:
        body = {"metadata": owners, "spec": spec} if owners else {"spec": spec}
        answer = await client.patch(LEASES, self._namespace, self._name, body, version)
        return lease_record(msgspec.convert(answer, Lease))

    def _spec(self, transitions: int, took: bool) -> dict[str, Any]:
        now = self._today().strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        spec = {
            "holderIdentity": self._identity,
            "leaseDurationSeconds": self._timing.duration,
            "renewTime": now,
            "leaseTransitions": transitions,
        }
        return {**spec, "acquireTime": now} if took else spec


def lease_record(lease: Lease) -> LeaseRecord:
    """What the rules of leases go by."""
    spec = lease.spec
    return LeaseRecord(
        lease.metadata.resource_version,
        spec.holder_identity or "",
        float(spec.lease_duration_seconds or 0),
        spec.renew_time or "",
        spec.lease_transitions or 0,
    )
