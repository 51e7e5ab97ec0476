"""Reading and writing objects.

Guarantees:
- each method returns what the server says, or raises one `ApiError`;
- no attempt takes longer than its time limit, and failures that may pass are tried again by the retry policy,
  but for those of a watch.
"""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from random import Random
from typing import Any, Generic, TypeVar

import msgspec

from rljob_client.errors import Gone, error_of, refusal_of
from rljob_client.objects import Item, Page, Status, WatchEvent
from rljob_client.resources import Resource, resource_of
from rljob_client.retry import RetryPolicy, attempted
from rljob_client.transport import Call, Transport, answer_of

AnswerT = TypeVar("AnswerT")
ItemT = TypeVar("ItemT", bound=Item)
Object = dict[str, Any]
"""A Kubernetes object, as JSON."""

PAGE_SIZE = 500
"""Objects of one page of a list, as in kubectl."""
_LIST_RESTARTS = 3
"""How often a list begins anew whose snapshot the server gave up, some minutes after it was taken."""
_RETRY = RetryPolicy()


@dataclass(frozen=True)
class Change(Generic[ItemT]):
    """One event of a watch."""

    kind: str
    """ADDED, MODIFIED, DELETED or BOOKMARK."""
    version: str
    """resourceVersion up to which everything is known now."""
    item: ItemT | None
    """None in a bookmark."""


@dataclass(frozen=True)
class WatchLimits:
    """How long one watch lasts, in seconds."""

    server_seconds: int = 270
    """The server ends it after this long."""
    silence_seconds: float = 75.0
    """It is given up when nothing comes for this long; the server sends a bookmark about every 60 s."""


@dataclass(frozen=True)
class ClientSettings:
    """How a client behaves."""

    field_manager: str
    """Who owns the fields that are written."""
    timeout_seconds: float = 35.0
    """For each attempt: longer than the API server waits for one admission webhook (30 s at most), which it
    then names."""
    retry: RetryPolicy = _RETRY


class ApiClient:
    """The verbs, over one `Transport`."""

    def __init__(self, transport: Transport, settings: ClientSettings, random: Random) -> None:
        self._transport = transport
        self._settings = settings
        self._random = random

    # Reading

    async def get(self, resource: Resource, namespace: str | None, name: str, kind: type[AnswerT]) -> AnswerT:
        """One object, as it is now, decoded as `kind`. Raises `NotFound`."""
        call = Call("get", resource, resource.path(namespace, name))
        return answer_of(call, await self._read(call), kind)

    async def pages(
        self,
        resource: Resource,
        item: type[AnswerT],
        namespace: str | None = None,
        label_selector: str = "",
        page_size: int = PAGE_SIZE,
        field_selector: str = "",
    ) -> AsyncIterator[Page[AnswerT]]:
        """All objects, as they are now, page by page. Raises `Gone` when this took so long that the server no
        longer keeps the snapshot: the pages that came are then worth nothing."""
        token = ""
        while True:
            query = _query(
                labelSelector=label_selector,
                fieldSelector=field_selector,
                limit=str(page_size),
                **{"continue": token},
            )
            call = Call("list", resource, resource.path(namespace), query)
            page = answer_of(call, await self._read(call), Page[item])  # type: ignore[valid-type]
            yield page
            # It stands for the first page's snapshot: all pages are of the same moment.
            token = page.metadata.continue_
            if not token:
                return

    async def list(
        self,
        resource: Resource,
        item: type[AnswerT],
        namespace: str | None = None,
        label_selector: str = "",
        field_selector: str = "",
    ) -> list[AnswerT]:
        """All objects, as they are now."""
        restarts = 0
        while True:
            found: list[AnswerT] = []
            try:
                async for page in self.pages(
                    resource, item, namespace, label_selector, field_selector=field_selector
                ):
                    found.extend(page.items)
                return found
            except Gone:
                # Half of one snapshot says nothing beside half of the next.
                restarts += 1
                if restarts > _LIST_RESTARTS:
                    raise

    async def version_of(
        self, resource: Resource, namespace: str | None = None, field_selector: str = ""
    ) -> str:
        """The resourceVersion that the server is at now, for a type of objects."""
        query = _query(fieldSelector=field_selector, limit="1")
        call = Call("get", resource, resource.path(namespace), query)
        return answer_of(call, await self._read(call), Page[Item]).metadata.resource_version

    @asynccontextmanager
    async def watch(
        self,
        resource: Resource,
        item: type[ItemT],
        version: str,
        namespace: str | None = None,
        label_selector: str = "",
        field_selector: str = "",
        limits: WatchLimits | None = None,
    ) -> AsyncIterator[AsyncIterator[Change[ItemT]]]:
        """Changes after `version` (empty: first all objects as they are), until the server ends the watch;
        entered when the server has accepted it. Both entering and reading raise `Gone` when `version` is too
        old. Nothing is tried again."""
        limits = limits or WatchLimits()
        query = _query(
            watch="true",
            allowWatchBookmarks="true",
            resourceVersion=version,
            timeoutSeconds=str(limits.server_seconds),
            labelSelector=label_selector,
            fieldSelector=field_selector,
        )
        call = Call("watch", resource, resource.path(namespace), query)
        async with self._transport.stream(call, limits.silence_seconds) as lines:
            yield (_change(call, line, item) async for line in lines)

    # Writing

    async def create(self, manifest: Mapping[str, Any]) -> Object:
        """Make an object. Raises `AlreadyExists`, and `Invalid` for a field that the server does not know: it
        would be dropped."""
        resource, namespace, _ = _identity(manifest)
        query = _query(fieldManager=self._settings.field_manager, fieldValidation="Strict")
        path = resource.path(namespace)
        return await self._write(Call("create", resource, path, query, msgspec.json.encode(manifest)))

    async def apply(self, manifest: Mapping[str, Any], force: bool = True) -> Object:
        """Server-side apply: make the object, or set the fields that `manifest` has and drop those that this
        field manager applied before and are not in it. With metadata.resourceVersion or uid: only if they
        match.

        Without `force`, raises `Conflict` where another manager owns a field. Raises `Invalid` for a field
        that the server does not know."""
        resource, namespace, name = _identity(manifest)
        return await self._apply(manifest, resource, resource.path(namespace, name), force)

    async def apply_status(self, manifest: Mapping[str, Any], force: bool = True) -> Object:
        """`apply`, of the status alone; `Invalid`, too, where the CustomResourceDefinition is older than the
        status that is written."""
        resource, namespace, name = _identity(manifest)
        return await self._apply(manifest, resource, resource.path(namespace, name, "status"), force)

    async def patch(
        self,
        resource: Resource,
        namespace: str | None,
        name: str,
        changes: Mapping[str, Any],
        version: str | None = None,
    ) -> Object:
        """JSON merge patch: lists are replaced whole, None removes a field. With `version`, raises `Conflict`
        when the object's resourceVersion is another."""
        if version is not None:
            metadata = {**changes.get("metadata", {}), "resourceVersion": version}
            changes = {**changes, "metadata": metadata}
        query = _query(fieldManager=self._settings.field_manager)
        body = msgspec.json.encode(changes)
        path = resource.path(namespace, name)
        return await self._write(Call("patch", resource, path, query, body, "application/merge-patch+json"))

    async def delete(
        self, resource: Resource, namespace: str | None, name: str, uid: str, version: str | None = None
    ) -> None:
        """Delete exactly this object; what it owns goes after it. Raises `Conflict` when there is another one
        of that name, or with `version` when it was changed; `NotFound` when there is none."""
        # A retry after a lost answer must not delete a successor of the same name.
        preconditions = {"uid": uid} if version is None else {"uid": uid, "resourceVersion": version}
        body = msgspec.json.encode(
            {
                "apiVersion": "v1",
                "kind": "DeleteOptions",
                "propagationPolicy": "Background",
                "preconditions": preconditions,
            }
        )
        await self._write(Call("delete", resource, resource.path(namespace, name), (), body))

    async def _apply(self, manifest: Mapping[str, Any], resource: Resource, path: str, force: bool) -> Object:
        query = _query(fieldManager=self._settings.field_manager, force=str(force).lower())
        body = msgspec.json.encode(manifest)
        return await self._write(Call("apply", resource, path, query, body, "application/apply-patch+yaml"))

    # Attempts

    async def _read(self, call: Call) -> bytes:
        return await attempted(lambda: self._send(call), self._settings.retry, self._random)

    async def _write(self, call: Call) -> Object:
        sent = attempted(lambda: self._send_write(call), self._settings.retry, self._random)
        return answer_of(call, await sent, Object)

    async def _send(self, call: Call) -> bytes:
        return await self._transport.send(call, self._settings.timeout_seconds)

    async def _send_write(self, call: Call) -> bytes:
        """One attempt at a write. Override it to hold writes up, or to refuse them."""
        return await self._send(call)


def _identity(manifest: Mapping[str, Any]) -> tuple[Resource, str | None, str]:
    """Type, namespace and name."""
    metadata = manifest["metadata"]
    return resource_of(manifest), metadata.get("namespace"), metadata["name"]


def _query(**parameters: str) -> tuple[tuple[str, str], ...]:
    return tuple((name, value) for name, value in parameters.items() if value)


def _change(call: Call, line: bytes, item: type[ItemT]) -> Change[ItemT]:
    event = answer_of(call, line, WatchEvent)
    # The server has answered 200 by now: what goes wrong later, also 410, comes as an event.
    if event.type == "ERROR":
        code = answer_of(call, event.object, Status).code
        raise error_of(str(call), refusal_of(code or 500, bytes(event.object)))
    if event.type == "BOOKMARK":
        return Change(event.type, answer_of(call, event.object, Item).metadata.resource_version, None)
    found = answer_of(call, event.object, item)
    return Change(event.type, found.metadata.resource_version, found)
