"""Which fields the cluster's RayClusters have: read from the API server's schema, and again every minute, as
KubeRay may be upgraded.

Guarantees: a look that fails changes nothing, and is told once: decisions go by what was found last. Where
nothing was found yet, it raises."""

import asyncio
import logging
from collections.abc import Callable
from typing import Any, Literal

from rljob_client.errors import ApiError, NotFound
from rljob_client.resources import RAY_CLUSTERS
from rljob_client.transport import Call, Transport, answer_of
from rljob_operator.render.kuberay import KubeRay, UnsupportedKubeRay

log = logging.getLogger(__name__)

State = tuple[Literal["ready", "missing", "unsupported"], str]

_PATH = f"/openapi/v3/apis/{RAY_CLUSTERS.api_version}"
_KEPT_SECONDS = 60.0
_TIMEOUT_SECONDS = 30.0


class KubeRaySchema:
    """Capabilities of the cluster's KubeRay, by its CustomResourceDefinition."""

    def __init__(self, transport: Transport, clock: Callable[[], float]) -> None:
        self._transport = transport
        self._clock = clock
        self._found: KubeRay | str | None = None
        """Capabilities, or why there are none; None before the first look and while it is missing."""
        self._until = 0.0
        self._failing = False
        """Whether the newest look failed, and that is told."""
        self._one_at_a_time = asyncio.Lock()

    async def state(self, served: bool) -> State:
        """What decisions need to know. `served`: whether the API server serves RayClusters at all. Raises
        `ApiError` where nothing was found yet."""
        if not served:
            self._found = None
            return "missing", ""
        # Many jobs are decided on at the same time, and one question is enough for all.
        async with self._one_at_a_time:
            if self._found is None or self._clock() >= self._until:
                self._found = await self._look_again()
                self._until = self._clock() + _KEPT_SECONDS
        if self._found is None:
            return "missing", ""
        return ("unsupported", self._found) if isinstance(self._found, str) else ("ready", "")

    @property
    def capabilities(self) -> KubeRay:
        """What can be rendered. Only where `state` said ready."""
        if not isinstance(self._found, KubeRay):
            raise UnsupportedKubeRay(self._found or "this cluster has no RayClusters")
        return self._found

    async def _look_again(self) -> KubeRay | str | None:
        """What is found, or what was found last where the look fails."""
        try:
            found = await self._look()
        except ApiError as error:
            # Without it no job could be decided on, and of most jobs nothing is to be made.
            if self._found is None:
                raise
            if not self._failing:
                log.warning(
                    "the fields of RayClusters cannot be read again, those read last are taken: %s", error
                )
            self._failing = True
            return self._found
        self._failing = False
        return found

    async def _look(self) -> KubeRay | str | None:
        call = Call("get", RAY_CLUSTERS, _PATH)
        try:
            body = await self._transport.send(call, _TIMEOUT_SECONDS)
        except NotFound:
            return None
        try:
            return KubeRay.of_schema(answer_of(call, body, dict[str, Any]))
        except UnsupportedKubeRay as error:
            return str(error)
