"""Follows the RLJob that this driver runs.

Guarantees: every desired state that lasts long enough to be seen reaches the listener, the newest last; an
API server that is away, restarts, or is restored from a backup only delays that; a job of the same name that
was made later counts as this one's deletion. Needs the verbs get and watch on this one
object.
"""

import asyncio
import logging
import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import msgspec

from rljob_client.backoff import Failures
from rljob_client.client import ApiClient, Change
from rljob_client.errors import ApiError, NoSuchResource, NotFound, Unreachable
from rljob_client.objects import Item
from rljob_client.resources import RLJOBS
from rljob_client.retry import PATIENT, PATIENT_BACKOFF, attempted
from rljob_runtime.site.desired import DesiredState, desired_state_of

log = logging.getLogger(__name__)


class JobGone(RuntimeError):
    """There is no such RLJob."""


@dataclass(frozen=True)
class Identity:
    """Names an RLJob."""

    namespace: str
    name: str


async def read_job(
    client: ApiClient, identity: Identity, seconds: float, rng: random.Random
) -> dict[str, Any]:
    """The RLJob as the server has it, tried for `seconds`. Raises `JobGone`, and `ApiError` with the last
    reason."""
    last: ApiError | None = None

    async def get() -> dict[str, Any]:
        return await client.get(RLJOBS, identity.namespace, identity.name, dict[str, Any])

    def failed(error: ApiError) -> None:
        nonlocal last
        last = error
        log.warning("reading the RLJob: %s", error)

    try:
        async with asyncio.timeout(seconds):
            return await attempted(get, PATIENT, rng, failed)
    except TimeoutError:
        why = f"it could not be read for {seconds:g} s: {last or 'no answer'}"
        raise Unreachable(f"RLJob {identity.namespace}/{identity.name}", why) from last
    except NoSuchResource:
        # Not the job is missing, but its definition: the error says what to install.
        raise
    except NotFound:
        raise JobGone(f"there is no RLJob {identity.namespace}/{identity.name}") from None


class _Found(Item):
    # Whatever is there: what is not understood must not end the watch.
    spec: Any = None
    status: Any = msgspec.UNSET


class OwnJob:
    """See the module's guarantees."""

    def __init__(
        self, client: ApiClient, identity: Identity, uid: str, desired: DesiredState, rng: random.Random
    ) -> None:
        """`uid` is the RLJob's metadata.uid, `desired` what it asked for when it was read."""
        self._client = client
        self._identity = identity
        self._uid = uid
        self._desired = desired
        self._rng = rng

    @property
    def desired(self) -> DesiredState:
        """The newest desired state that was seen."""
        return self._desired

    async def follow(self, changed: Callable[[DesiredState], None]) -> None:
        """Call `changed` with each new desired state, until cancelled. The watch ends by its own deadlines
        (`WatchLimits`) and is begun again."""
        failures = Failures(PATIENT_BACKOFF, self._rng)
        # With the name in the selector a role may allow the watch for this one object (`resourceNames`).
        # Without a version the server begins with the object as it is now: one that was restored from a
        # backup would tell nothing before it has reached the version again.
        where, selector = self._identity.namespace, f"metadata.name={self._identity.name}"
        while True:
            heard = False
            try:
                watch = self._client.watch(RLJOBS, _Found, "", where, field_selector=selector)
                async with watch as changes:
                    async for change in changes:
                        self._take(change, changed)
                        heard = True
            except ApiError as error:
                level = logging.INFO if error.retryable else logging.WARNING
                log.log(level, "the watch of the RLJob ended: %s", error)
                heard = False
            # A server that ends every watch at once is not asked without a pause.
            if heard:
                failures.worked()
            else:
                await asyncio.sleep(failures.failed())

    def _take(self, change: Change[_Found], changed: Callable[[DesiredState], None]) -> None:
        # A bookmark says only that the server is there.
        if change.item is None:
            return
        if change.kind == "DELETED":
            self._set(replace(self.desired, deleted=True), changed)
        else:
            self._see(change.item, changed)

    def _see(self, found: _Found, changed: Callable[[DesiredState], None]) -> None:
        try:
            desired = desired_state_of(msgspec.to_builtins(found))
        except ValueError as error:
            log.warning("the job goes on as before: %s", error)
            return
        # Deleted and made again between two watches, which shows no DELETED.
        another = found.metadata.uid != self._uid
        self._set(replace(self.desired, deleted=True) if another else desired, changed)

    def _set(self, desired: DesiredState, changed: Callable[[DesiredState], None]) -> None:
        before, self._desired = self._desired, desired
        if desired != before:
            changed(desired)
