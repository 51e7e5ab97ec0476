"""Makes the objects that last as long as the job.

Guarantees: each exists as rendered when this is done; one that is as it should be is not written; one of that
name that somebody else made is never taken over; the Role is there before whoever refers to it. The Secret is
created only, and neither read nor written again: its name is the job's own.
"""

import asyncio
import logging
from collections.abc import Awaitable, Iterable, Mapping
from typing import Any

from rljob_operator.controller.project import controller_uid
from rljob_operator.kube.client import ApiClient
from rljob_operator.kube.errors import AlreadyExists, Conflict, NotFound
from rljob_operator.kube.objects import Item
from rljob_operator.kube.resources import resource_of
from rljob_operator.render import JobKey

log = logging.getLogger(__name__)

Object = Mapping[str, Any]

_REFERRING = ("RoleBinding",)
"""Kinds that the API server refuses before what they refer to is there, unless the writer may do anything."""


class Taken(RuntimeError):
    """An object that is not the job's has a name that the job needs."""


async def ensure(
    client: ApiClient, key: JobKey, secret: Object, manifests: Iterable[Object], new: bool
) -> None:
    """Make the objects of a job, those that do not refer to others at the same time.

    `new`: whether the job has none yet, as far as is known; they are then created, which costs the API server
    less than to apply them. Raises `ApiError` or `Taken` for the first that cannot be made."""
    manifests = list(manifests)
    first = [each for each in manifests if each["kind"] not in _REFERRING]
    last = [each for each in manifests if each["kind"] in _REFERRING]
    await _all([_create_once(client, secret), *(_ensure(client, key, each, new) for each in first)])
    await _all([_ensure(client, key, each, new) for each in last])


async def _all(works: Iterable[Awaitable[None]]) -> None:
    """All of them, to their ends; then the first failure."""
    for outcome in await asyncio.gather(*works, return_exceptions=True):
        if isinstance(outcome, BaseException):
            raise outcome


async def _create_once(client: ApiClient, manifest: Object) -> None:
    try:
        await client.create(manifest)
    except AlreadyExists:
        log.debug("%s/%s is there", manifest["metadata"]["namespace"], manifest["metadata"]["name"])


async def _ensure(client: ApiClient, key: JobKey, manifest: Object, new: bool) -> None:
    if new:
        try:
            await client.create(manifest)
            return
        except AlreadyExists:
            log.debug("%s %s is there", manifest["kind"], manifest["metadata"]["name"])
    try:
        await client.apply(manifest, force=False)
    except Conflict as error:
        await _force(client, key, manifest, error)


async def _force(client: ApiClient, key: JobKey, manifest: Object, error: Conflict) -> None:
    """What a creation set is owned by a creation, and an apply that changes it is a conflict: it is forced on
    an object that is the job's own."""
    namespace, name = manifest["metadata"]["namespace"], manifest["metadata"]["name"]
    try:
        found = await client.get(resource_of(manifest), namespace, name, Item)
    except NotFound:
        raise error from None
    if controller_uid(found) != key.uid:
        text = f"{manifest['kind']} {name} exists and is somebody else's; {key.name} needs that name: {error}"
        raise Taken(text) from error
    mine = {**manifest, "metadata": {**manifest["metadata"], "uid": found.metadata.uid}}
    await client.apply(mine, force=True)
