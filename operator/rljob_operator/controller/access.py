"""Makes the objects that last as long as the job.

Guarantees: each exists as rendered when this is done; one that is as it should be is not written; one of that
name that is not the job's is neither written nor taken over; the Role is there before whoever refers to it.
The Secret is created only, and neither read nor written again: its name is the job's own.
"""

import asyncio
import logging
from collections.abc import Awaitable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Literal

import msgspec

from rljob_api.job import KIND
from rljob_client.errors import AlreadyExists, Forbidden, Invalid, NotFound, WebhookFailed
from rljob_client.objects import Item, OwnerReference
from rljob_client.resources import resource_of
from rljob_operator.kube.client import ApiClient
from rljob_operator.render import JobKey

log = logging.getLogger(__name__)

Object = Mapping[str, Any]

_REFERRING = ("RoleBinding",)
"""Kinds that the API server refuses before what they refer to is there, unless the writer may do anything."""
_LEFTOVER_SECONDS = 2.0
"""What an earlier job of the same name owned goes within seconds."""


class CreationError(RuntimeError):
    """An object that a job needs cannot be made. Its text says which and why, in one sentence."""

    reason: Literal["NameTaken", "RayClusterRefused"]
    """Reason that the condition PodsReady has then."""

    def __init__(self, text: str, again_seconds: float = 30.0) -> None:
        """`again_seconds`: until it is to be tried again; nothing tells when it would succeed."""
        super().__init__(text)
        self.again_seconds = again_seconds
        self.cause: CreationError = self
        """What went wrong, where this says only at what."""


class Taken(CreationError):
    """An object that is not the job's has a name that the job needs."""

    reason = "NameTaken"


class Refused(CreationError):
    """The API server refuses an object: by its schema, a right, a quota, an admission policy or a webhook,
    also one that does not answer."""

    reason = "RayClusterRefused"


class Unrenderable(CreationError):
    """Nothing can be made of a spec in which nothing was found wrong: a defect of the operator."""

    reason = "RayClusterRefused"


class NotRestored(CreationError):
    """An object of a running job that was deleted cannot be made again: the job goes on without it."""

    def __init__(self, cause: CreationError) -> None:
        super().__init__(str(cause), cause.again_seconds)
        self.reason, self.cause = cause.reason, cause


@contextmanager
def rendering(what: str) -> Iterator[None]:
    """Raises `Unrenderable` for whatever goes wrong: it is the one job's, whose status tells of it."""
    try:
        yield
    except Exception as error:
        said = f"{what} cannot be made of the spec, by a defect of the operator: {type(error).__name__}."
        raise Unrenderable(said) from error


@contextmanager
def refusals(manifest: Object) -> Iterator[None]:
    """Raises `Refused` where the API server refuses the object; a namespace that goes is no such case."""
    try:
        yield
    except (Invalid, Forbidden, WebhookFailed) as error:
        if error.caused_by("NamespaceTerminating"):
            raise
        text = f"The API server refuses {_named(manifest)}: {error.message.rstrip('.')}."
        raise Refused(text) from error


async def ensure(
    client: ApiClient, key: JobKey, secret: Object, manifests: Iterable[Object], new: bool
) -> None:
    """Make the objects of a job, those that do not refer to others at the same time.

    `new`: whether the job has none yet, as far as is known; they are then created, which costs the API server
    less than to look for them first. Raises `ApiError` or `CreationError` for the first that fails."""
    first, last = _in_order(manifests)
    await _all([_create_once(client, secret), *(_ensure(client, key, each, new) for each in first)])
    await _all([_ensure(client, key, each, new) for each in last])


async def restore(client: ApiClient, manifests: Iterable[Object]) -> None:
    """Create those objects of a job that do not exist; the others are left as they are, whatever they say.
    Raises as `ensure` does."""
    for some in _in_order(manifests):
        await _all([_restore(client, each) for each in some])


def as_rendered(found: Object, manifest: Object) -> bool:
    """Whether an object has all that the manifest says, but for its owner; the API server and others may have
    added fields."""
    wanted = {**manifest, "metadata": {"labels": manifest["metadata"].get("labels", {})}}
    # Of the metadata the labels alone: the API server and other controllers add to the rest.
    return _holds(found, wanted)


def _holds(found: Any, wanted: Any) -> bool:
    if isinstance(wanted, Mapping) and isinstance(found, Mapping):
        return all(_holds(found.get(name), value) for name, value in wanted.items())
    return bool(found == wanted)


def _in_order(manifests: Iterable[Object]) -> tuple[list[Object], list[Object]]:
    """The objects that others refer to, and those that refer to them."""
    known = list(manifests)
    first = [each for each in known if each["kind"] not in _REFERRING]
    return first, [each for each in known if each["kind"] in _REFERRING]


async def _all(works: Iterable[Awaitable[None]]) -> None:
    """Wait until all have ended, then raise the first failure: none goes on unwatched."""
    for outcome in await asyncio.gather(*works, return_exceptions=True):
        if isinstance(outcome, BaseException):
            raise outcome


async def _create_once(client: ApiClient, manifest: Object) -> None:
    with refusals(manifest):
        try:
            await client.create(manifest)
        except AlreadyExists:
            log.debug("%s is there", _named(manifest))


async def _ensure(client: ApiClient, key: JobKey, manifest: Object, new: bool) -> None:
    with refusals(manifest):
        found = None if new else await _find(client, manifest)
        if found is None:
            try:
                await client.create(manifest)
                return
            except AlreadyExists:
                found = await _find(client, manifest)
                if found is None:
                    raise  # it went meanwhile
        # An apply that names the UID fails where the object has been replaced since it was read.
        uid = _own_uid(found, key, manifest)
        if not as_rendered(found, manifest):
            # Forced: what a creation set is owned by a creation, which an apply conflicts with.
            await client.apply({**manifest, "metadata": {**manifest["metadata"], "uid": uid}}, force=True)


async def _restore(client: ApiClient, manifest: Object) -> None:
    with refusals(manifest):
        if await _find(client, manifest) is not None:
            return
        log.warning("%s was deleted while the job runs: it is made again", _named(manifest))
    await _create_once(client, manifest)


async def _find(client: ApiClient, manifest: Object) -> dict[str, Any] | None:
    metadata = manifest["metadata"]
    try:
        return await client.get(
            resource_of(manifest), metadata["namespace"], metadata["name"], dict[str, Any]
        )
    except NotFound:
        return None


def _own_uid(found: Object, key: JobKey, manifest: Object) -> str:
    """UID of an object that is the job's own; raises `Taken` for any other."""
    metadata = msgspec.convert(found, Item).metadata
    owner = next((each for each in metadata.owner_references if each.controller), None)
    if owner is not None and owner.uid == key.uid:
        return metadata.uid
    if _is_earlier(owner, key):
        text = f"{_named(manifest)} is left of an earlier RLJob {key.name}: waiting for it to go."
        raise Taken(text, _LEFTOVER_SECONDS)
    raise Taken(f"{_named(manifest)} exists and is somebody else's; {key.name} needs that name.")


def _is_earlier(owner: OwnerReference | None, key: JobKey) -> bool:
    return owner is not None and (owner.kind, owner.name) == (KIND, key.name)


def _named(manifest: Object) -> str:
    return f"{manifest['kind']} {manifest['metadata']['name']}"
