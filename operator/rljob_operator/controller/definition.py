"""The cluster's RLJob definition beside this operator's: whether it has all that the operator writes.

An upgrade of the operator does not always bring its CustomResourceDefinition along, and the API server
refuses every status with a field that it does not know.

Guarantees: what the definition does not know is left out of every status, and where an operator could not do
without it (`declared.ESSENTIAL`), nothing is written for an RLJob. Either is said once in the log, and the
latter to whoever asks `trouble`; so is, in the log, what a newer definition has besides. A definition that is
replaced is noticed by itself. Where the API server does not tell the schema, it counts as this release's.
"""

import asyncio
import logging
from collections.abc import Callable
from typing import Any

from rljob_api.crd import object_schema
from rljob_api.job import KIND, Spec
from rljob_api.status import Status
from rljob_api.stored import name_fields
from rljob_api.stored_status import read_status
from rljob_client.errors import ApiError, NotFound, Unreachable
from rljob_client.resources import RLJOBS
from rljob_client.transport import Call, Transport, answer_of
from rljob_operator.controller.declared import ESSENTIAL, Schema, declared, lacking

log = logging.getLogger(__name__)

_PATH = f"/openapi/v3/apis/{RLJOBS.api_version}"
_TIMEOUT_SECONDS = 30.0


class Definition:
    """`run` it in a task of its own."""

    def __init__(
        self,
        transport: Transport,
        on_mended: Callable[[], None],
        wait_seconds: float = 5.0,
        recheck_seconds: float = 300.0,
    ) -> None:
        """`on_mended`: called when it was too old and is not any more, and when it takes another part of what
        is written than before. `wait_seconds`: between looks while it is too old; `recheck_seconds`: else."""
        self._transport = transport
        self._on_mended = on_mended
        self._wait_seconds = wait_seconds
        self._recheck_seconds = recheck_seconds
        self._doubted = asyncio.Event()
        self.known = asyncio.Event()
        """Set once it was looked at, whatever was found."""
        self.trouble: str | None = None
        """What is missing that the operator needs, and what to do about it, for people; None while nothing
        is."""
        self._served: Schema = {}
        """The schema of the status that the API server has; empty: this release's."""
        self._told: tuple[str | None, ...] = ()

    def storable(self, status: Status) -> Status:
        """The operator's part of a status, without what the definition does not know."""
        if not self._served:
            return status
        kept = read_status(declared(own_status(status), self._served))
        return kept.model_copy(update={"training": status.training})

    def doubt(self) -> None:
        """The API server refused a status: look again now."""
        self._doubted.set()

    async def run(self) -> None:
        """Look, time and again, until cancelled."""
        while True:
            wait = self._wait_seconds
            try:
                self._judge(await self._look())
                wait = self._wait_seconds if self.trouble else self._recheck_seconds
            # Not a warning: the informers tell of a server that is away.
            except Unreachable as error:
                log.debug("%s; the definition of RLJobs is looked at again", error)
            except ApiError as error:
                log.warning("%s; the definition of RLJobs is looked at again", error)
                self.known.set()
            await self._sleep(wait)

    async def _look(self) -> Schema | None:
        """The fields of an RLJob in the schema that the API server serves; None while it serves none, as it
        does for some seconds after the definition was made."""
        call = Call("get", RLJOBS, _PATH)
        try:
            body = await self._transport.send(call, _TIMEOUT_SECONDS)
        except NotFound:
            return None
        document = answer_of(call, body, dict[str, Any])
        for schema in document.get("components", {}).get("schemas", {}).values():
            kinds = schema.get("x-kubernetes-group-version-kind", ())
            if any((kind.get("group"), kind.get("kind")) == (RLJOBS.group, KIND) for kind in kinds):
                fields: Schema = schema.get("properties", {})
                return fields
        return None

    def _judge(self, fields: Schema | None) -> None:
        if fields is None:
            self.known.set()
            return
        served = fields.get("status", {})
        missing = list(lacking(served, written_schema(), "status"))
        more = list(lacking(object_schema(Spec), fields.get("spec", {}), "spec"))
        before, changed = self.trouble, (served if missing else {}) != self._served
        self.trouble = _too_old(missing) if ESSENTIAL.intersection(missing) else None
        self._served = served if missing else {}
        self.known.set()
        self._tell(missing, more)
        # What was left out is written now, and the other way round.
        if not self.trouble and (before or changed):
            self._on_mended()

    def _tell(self, missing: list[str], more: list[str]) -> None:
        older = _left_out(missing) if missing and not self.trouble else None
        newer = _newer(more) if more else None
        before, self._told = self._told, (self.trouble, older, newer)
        for level, text in (
            (logging.ERROR, self.trouble),
            (logging.WARNING, older),
            (logging.WARNING, newer),
        ):
            if text and text not in before:
                log.log(level, "%s", text)
        if any(before) and not any(self._told):
            log.info("the definition of RLJobs is of this operator's release now")

    async def _sleep(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                await self._doubted.wait()
        except TimeoutError:
            return
        self._doubted.clear()


def own_status(status: Status) -> dict[str, Any]:
    """The status as this operator writes it: all but the runtime's part."""
    return status.model_dump(mode="json", by_alias=True, exclude_none=True, exclude={"training"})


def written_schema() -> Schema:
    """The schema of the status as the operator writes it: without the runtime's part."""
    schema = object_schema(Status)
    return {**schema, "properties": {k: v for k, v in schema["properties"].items() if k != "training"}}


def _too_old(missing: list[str]) -> str:
    return f"{_older(missing)}. {_CURE} Until then nothing is done about RLJobs; what runs goes on."


def _left_out(missing: list[str]) -> str:
    return f"{_older(missing)}, which is left out of what is written. {_CURE}"


def _newer(more: list[str]) -> str:
    return (
        f"The cluster's CustomResourceDefinition {RLJOBS.plural}.{RLJOBS.group} is newer than this operator, "
        f"which leaves out {name_fields(more)}."
    )


def _older(missing: list[str]) -> str:
    return (
        f"The cluster's CustomResourceDefinition {RLJOBS.plural}.{RLJOBS.group} is older than this operator: "
        f"it lacks {name_fields(missing)}"
    )


_CURE = (
    "Apply the definition that comes with the operator's release, by kubectl apply --server-side -f "
    "rljobs.rljob.dev.yaml or by the chart."
)
