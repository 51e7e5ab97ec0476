"""Whether the cluster's RLJob definition has all that the operator writes.

An upgrade of the operator does not always bring its CustomResourceDefinition along, and the API server
refuses every status with a field that it does not know.

Guarantees: nothing is written for an RLJob while the definition is known to be too old; what is missing is
said once in the log, and to whoever asks `trouble`; a definition that is replaced is noticed by itself. Where
the API server does not tell the schema, it counts as new enough.
"""

import asyncio
import logging
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import msgspec

from rljob_api.crd import object_schema
from rljob_api.job import KIND
from rljob_api.status import Status
from rljob_operator.kube.errors import ApiError, NotFound, Unreachable
from rljob_operator.kube.resources import RLJOBS
from rljob_operator.kube.transport import Call, Transport

log = logging.getLogger(__name__)

Schema = Mapping[str, Any]

_PATH = f"/openapi/v3/apis/{RLJOBS.api_version}"
_TIMEOUT_SECONDS = 30.0
_NAMED = 5
"""Most missing fields that the message names."""


class Definition:
    """`run` it in a task of its own."""

    def __init__(
        self,
        transport: Transport,
        on_mended: Callable[[], None],
        wait_seconds: float = 5.0,
        recheck_seconds: float = 300.0,
    ) -> None:
        """`on_mended`: called when it was too old and is not any more. `wait_seconds`: between looks while
        something is wrong; `recheck_seconds`: while nothing is."""
        self._transport = transport
        self._on_mended = on_mended
        self._wait_seconds = wait_seconds
        self._recheck_seconds = recheck_seconds
        self._doubted = asyncio.Event()
        self.known = asyncio.Event()
        """Set once it was looked at, whatever was found."""
        self.trouble: str | None = None
        """What is missing and what to do about it, for people; None while nothing is."""

    def doubt(self) -> None:
        """The API server refused a status: look again now."""
        self._doubted.set()

    async def run(self) -> None:
        """Look, time and again, until cancelled."""
        while True:
            wait = self._wait_seconds
            try:
                self._judge(await self._served())
                wait = self._wait_seconds if self.trouble else self._recheck_seconds
            # Not a warning: the informers tell of a server that is away.
            except Unreachable as error:
                log.debug("%s; the definition of RLJobs is looked at again", error)
            except ApiError as error:
                log.warning("%s; the definition of RLJobs is looked at again", error)
                self.known.set()
            await self._sleep(wait)

    async def _served(self) -> Schema | None:
        """The status in the schema that the API server serves; None while it serves none, as it does for some
        seconds after the definition was made."""
        try:
            body = await self._transport.send(Call("get", RLJOBS, _PATH), _TIMEOUT_SECONDS)
        except NotFound:
            return None
        for schema in msgspec.json.decode(body).get("components", {}).get("schemas", {}).values():
            kinds = schema.get("x-kubernetes-group-version-kind", ())
            if any((kind.get("group"), kind.get("kind")) == (RLJOBS.group, KIND) for kind in kinds):
                served: Schema = schema.get("properties", {}).get("status", {})
                return served
        return None

    def _judge(self, served: Schema | None) -> None:
        if served is None:
            self.known.set()
            return
        missing = list(lacking(served, written_schema()))
        before, self.trouble = self.trouble, _text(missing) if missing else None
        self.known.set()
        if self.trouble and self.trouble != before:
            log.error("%s", self.trouble)
        if before and not self.trouble:
            log.info("the definition of RLJobs has all that is written now")
            self._on_mended()

    async def _sleep(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                await self._doubted.wait()
        except TimeoutError:
            return
        self._doubted.clear()


def written_schema() -> Schema:
    """The schema of the status as the operator writes it: without the runtime's part."""
    schema = object_schema(Status)
    return {**schema, "properties": {k: v for k, v in schema["properties"].items() if k != "training"}}


def lacking(served: Schema, wanted: Schema, path: str = "status") -> Iterator[str]:
    """Fields, and values of fields, that `wanted` has and `served` has not; the outermost of each."""
    # Such a schema takes any field.
    if served.get("x-kubernetes-preserve-unknown-fields"):
        return
    there = served.get("properties", {})
    for name, below in wanted.get("properties", {}).items():
        if name in there:
            yield from lacking(there[name], below, f"{path}.{name}")
        else:
            yield f"{path}.{name}"
    if "items" in wanted:
        yield from lacking(served.get("items", {}), wanted["items"], f"{path}[]")
    if "enum" in served:
        yield from (f"{path}: {value}" for value in wanted.get("enum", ()) if value not in served["enum"])


def _text(missing: list[str]) -> str:
    named = ", ".join(missing[:_NAMED]) + (f" and {len(missing) - _NAMED} more" if missing[_NAMED:] else "")
    return (
        f"The cluster's CustomResourceDefinition {RLJOBS.plural}.{RLJOBS.group} is older than this operator: "
        f"it lacks {named}. Apply the definition that comes with the operator's release, by kubectl apply "
        "--server-side -f rljobs.rljob.dev.yaml or by the chart. Until then nothing is done about RLJobs; "
        "what runs goes on."
    )
