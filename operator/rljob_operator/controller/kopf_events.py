"""kopf's part: it hears of RLJobs.

What is known of RLJobs comes from the informer; kopf's events only say which of them has become another.

Guarantees: kopf writes nothing: no annotation, no finalizer, no Event, no peering object; its handlers pass
on what changed, and nothing else happens in them. Where kopf hears nothing, only that word is missing.
"""

import asyncio
import itertools
import logging
from collections.abc import Awaitable, Callable, Iterator, Mapping
from random import Random
from typing import Any

import kopf

from rljob_api.job import GROUP, VERSION
from rljob_client.credentials import Credentials
from rljob_client.passwords import without_passwords
from rljob_operator.controller.kopf_login import KopfLogin

_REQUEST_SECONDS = 30.0
_CONNECT_SECONDS = 10.0
_WATCH_SECONDS = 270
_SILENCE_SECONDS = 75.0
"""A watch is given up after this silence; the API server sends a bookmark about every 60 s."""


class KopfEnded(Exception):
    """kopf has ended, though nobody has asked it to."""


class _Forever:
    """Seconds between attempts to reach the API server, without an end: kopf would end the process."""

    def __iter__(self) -> Iterator[float]:
        return itertools.chain((1.0, 1.0, 2.0), itertools.repeat(3.0))


class _NoMemory(kopf.DiffBaseStorage):  # type: ignore[misc]
    """No handler here asks what has changed since it was called last: kopf need not copy each object, twice
    for each event, to be able to tell."""

    def build(self, *, body: kopf.Body, extra_fields: Any = None) -> kopf.BodyEssence:
        return kopf.BodyEssence()

    def fetch(self, *, body: kopf.Body) -> kopf.BodyEssence | None:
        return None

    def store(self, *, body: kopf.Body, patch: kopf.Patch, essence: kopf.BodyEssence) -> None:
        raise NotImplementedError("nothing is stored: all handlers are of the kind on.event")


async def watch_jobs(
    heard: Callable[[Mapping[str, Any]], None],
    credentials: Credentials,
    namespace: str | None,
    stop: asyncio.Event,
    finish: Callable[[], Awaitable[None]],
    begun: Callable[[], None],
) -> None:
    """Call `heard` with each RLJob that changes or goes, as it is in the event, until `stop` is set; `finish`
    is awaited then. `begun` is called when kopf has taken SIGTERM and SIGINT, which it never gives back: no
    signal is heard before `begun` returns.

    `finish` must end all other tasks of the loop: kopf waits some seconds for those, and cancels them. Raises
    `KopfEnded`, as after a watch that says nonsense, and when RLJobs are not served any more.
    """
    registry = kopf.OperatorRegistry()
    async with KopfLogin(credentials, Random()) as login:

        async def seen(event: Any, **_: Any) -> None:
            heard(event["object"])

        async def cleanup(**_: Any) -> None:
            stop.set()  # kopf has a task that waits for it
            await finish()

        kopf.on.login(registry=registry)(login.log_in)
        kopf.on.cleanup(registry=registry)(cleanup)
        kopf.on.event(GROUP, VERSION, "rljobs", registry=registry)(seen)
        logging.getLogger("kopf").setLevel(logging.WARNING)
        try:
            before = asyncio.all_tasks()
            tasks = await kopf.spawn_tasks(
                registry=registry,
                settings=_settings(),
                # No peering objects: the lease says which replica writes.
                standalone=True,
                clusterwide=namespace is None,
                namespaces=[] if namespace is None else [namespace],
                stop_flag=stop,
                # kopf would make one of the user's name, which a container's user need not have.
                identity="rljob-operator",
            )
            begun()
            await kopf.run_tasks(tasks, ignored=before)
        # kopf's classes of errors are no part of what it exports.
        except Exception as error:
            raise KopfEnded(without_passwords(f"{type(error).__name__}: {error}")) from error


def _settings() -> kopf.OperatorSettings:
    settings = kopf.OperatorSettings()
    settings.posting.enabled = False
    # kopf would watch all CustomResourceDefinitions and namespaces, which the operator has no right to.
    settings.scanning.disabled = True
    settings.persistence.diffbase_storage = _NoMemory()
    settings.networking.request_timeout = _REQUEST_SECONDS
    settings.networking.connect_timeout = _CONNECT_SECONDS
    settings.networking.error_backoffs = _Forever()
    settings.watching.server_timeout = _WATCH_SECONDS
    # Only for a server that does not end the watch in its own time.
    settings.watching.client_timeout = _WATCH_SECONDS + 30
    settings.watching.inactivity_timeout = _SILENCE_SECONDS
    # kopf has a task for each object until so long after its last event: thousands, when all are listed.
    settings.queueing.idle_timeout = 0.5
    # By default kopf leaves an object alone for up to 610 s after errors.
    settings.queueing.error_delays = (1, 1, 2, 5, 10)
    return settings
