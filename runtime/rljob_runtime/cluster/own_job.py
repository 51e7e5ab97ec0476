"""Follows the RLJob that this driver runs.

Guarantees: every desired state that lasts long enough to be seen reaches the listener, the newest last; an
API server that is away, restarts, or is restored from a backup only delays that; a job of the same name that
was made later counts as this one's deletion. Needs the verbs get and watch on this one
object.
"""

import asyncio
import logging
import random
from collections.abc import Callable, Mapping
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import Any

from rljob_api import GROUP, VERSION
from rljob_runtime.cluster.api import ApiClient, ApiRefused, ApiUnavailable
from rljob_runtime.cluster.back_off import BackOff
from rljob_runtime.site.desired import DesiredState, desired_state_of

log = logging.getLogger(__name__)

_NOT_FOUND = 404


class JobGone(RuntimeError):
    """There is no such RLJob."""


@dataclass(frozen=True)
class Identity:
    """Names an RLJob."""

    namespace: str
    name: str

    @property
    def collection(self) -> str:
        """Path of the RLJobs of its namespace."""
        return f"/apis/{GROUP}/{VERSION}/namespaces/{self.namespace}/rljobs"

    @property
    def path(self) -> str:
        """Path of the RLJob."""
        return f"{self.collection}/{self.name}"


async def read_job(
    client: ApiClient, identity: Identity, seconds: float, rng: random.Random
) -> dict[str, Any]:
    """The RLJob as the server has it, tried for `seconds`. Raises `JobGone`, `ApiRefused`, and
    `ApiUnavailable` with the last reason."""
    back_off = BackOff(rng)
    last: ApiUnavailable | None = None
    try:
        async with asyncio.timeout(seconds):
            while True:
                try:
                    return await client.get(identity.path)
                except ApiUnavailable as error:
                    last = error
                    log.warning("reading the RLJob: %s", error)
                    await asyncio.sleep(back_off.failed())
    except TimeoutError:
        raise ApiUnavailable(f"the RLJob could not be read for {seconds:g} s: {last}") from last
    except ApiRefused as error:
        if error.status == _NOT_FOUND:
            raise JobGone(f"there is no RLJob {identity.namespace}/{identity.name}") from None
        raise


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
        (`cluster.api`) and is begun again."""
        back_off = BackOff(self._rng)
        # With the name in the selector a role may allow the watch for this one object (`resourceNames`).
        # Without a version the server begins with the object as it is now: one that was restored from a
        # backup would tell nothing before it has reached the version again.
        query = {"fieldSelector": f"metadata.name={self._identity.name}", "allowWatchBookmarks": "true"}
        while True:
            heard = False
            try:
                async with aclosing(self._client.watch(self._identity.collection, query)) as events:
                    async for event in events:
                        self._take(event, changed)
                        heard = True
            except ApiUnavailable as error:
                log.info("the watch of the RLJob ended: %s", error)
                heard = False
            except ApiRefused as error:
                log.warning("the watch of the RLJob is refused: %s", error)
                heard = False
            # A server that ends every watch at once is not asked without a pause.
            if heard:
                back_off.worked()
            else:
                await asyncio.sleep(back_off.failed())

    def _take(self, event: Mapping[str, Any], changed: Callable[[DesiredState], None]) -> None:
        """Use one event. Raises `ApiUnavailable` for one that ends the watch."""
        found: Mapping[str, Any] = event.get("object", {})
        match event.get("type"):
            case "ERROR":
                raise ApiUnavailable(f"the server ended the watch: {found.get('message')}")
            case "BOOKMARK":
                # It says only that the server is there.
                pass
            case "DELETED":
                self._set(replace(self.desired, deleted=True), changed)
            case _:
                self._see(found, changed)

    def _see(self, found: Mapping[str, Any], changed: Callable[[DesiredState], None]) -> None:
        try:
            desired = desired_state_of(found)
        except ValueError as error:
            log.warning("the job goes on as before: %s", error)
            return
        # Deleted and made again between two watches, which shows no DELETED.
        another = found.get("metadata", {}).get("uid") != self._uid
        self._set(replace(self.desired, deleted=True) if another else desired, changed)

    def _set(self, desired: DesiredState, changed: Callable[[DesiredState], None]) -> None:
        before, self._desired = self._desired, desired
        if desired != before:
            changed(desired)
