"""Follows the RLJob that this driver runs.

Guarantees: every desired state that lasts long enough to be seen reaches the listener, the newest last; an
API server that is away, restarts or no longer has the version that is asked for only delays that; a job of
the same name that was made later counts as this one's deletion. Needs the verbs get and watch on this one
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

_GONE = 410
"""Of HTTP: the server no longer has the version that a watch was to begin at."""
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
        version: str | None = None
        while True:
            heard = False
            try:
                # Without a version the server begins with the object as it is now.
                watch = self._client.watch(self._identity.collection, self._query(version))
                async with aclosing(watch) as events:
                    async for event in events:
                        version = self._take(event, version, changed)
                        heard = version is not None
                        # The version is too old: another watch begins with the present state, after a pause.
                        if not heard:
                            break
            except ApiUnavailable as error:
                log.info("the watch of the RLJob ended: %s", error)
                heard = False
            except ApiRefused as error:
                log.warning("the watch of the RLJob is refused: %s", error)
                heard, version = False, None
            # A server that ends every watch at once is not asked without a pause.
            if heard:
                back_off.worked()
            else:
                await asyncio.sleep(back_off.failed())

    def _query(self, version: str | None) -> dict[str, str]:
        # With the name in the selector a role may allow the watch for this one object (`resourceNames`).
        query = {"fieldSelector": f"metadata.name={self._identity.name}", "allowWatchBookmarks": "true"}
        return query if version is None else {**query, "resourceVersion": version}

    def _take(
        self, event: Mapping[str, Any], version: str | None, changed: Callable[[DesiredState], None]
    ) -> str | None:
        """Use one event; the version to go on from after it, None to begin with the present state."""
        found: Mapping[str, Any] = event.get("object", {})
        match event.get("type"):
            case "ERROR" if found.get("code") == _GONE:
                return None
            case "ERROR":
                raise ApiUnavailable(f"the server ended the watch: {found.get('message')}")
            case "BOOKMARK":
                # A bookmark says only how far the server is, which is taken below.
                pass
            case "DELETED":
                self._set(replace(self.desired, deleted=True), changed)
            case _:
                self._see(found, changed)
        newest: str | None = found.get("metadata", {}).get("resourceVersion", version)
        return newest

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
