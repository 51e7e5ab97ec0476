"""Keeps a small projection of all objects of one type in memory, as they change.

Guarantees:
- after `synced`, the store is what the API server had at some moment not long ago, and it only moves forward;
  what happened while there was no connection is found by the next watch or list, deletions included;
- `on_change(owner)` is called, after the store has changed, for each owner whose projected objects differ;
- objects are decoded page by page and only in the fields that the projection needs;
- an object of which no projection can be made costs nothing but itself: it stays as it was last readable,
  and is told once;
- `run` ends with `HistoryLost` when the server is at an earlier state than it was before, as after it was
  restored from a backup: versions that are known from before would make later ones look old;
- a dead connection is noticed by its silence; a type that the server does not serve counts as having no
  objects, and is looked for again; one that it served before must be denied several times for that.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, replace
from functools import partial
from random import Random
from typing import Generic, TypeVar

from rljob_client.client import PAGE_SIZE, Change, WatchLimits
from rljob_client.errors import ApiError, Gone, NoSuchResource
from rljob_client.objects import Item
from rljob_client.resources import Resource
from rljob_operator.kube.client import ApiClient
from rljob_operator.kube.informer_store import InformerStore, Key, OwnerT, ValueT
from rljob_operator.kube.observer import KubeObserver
from rljob_operator.kube.watch_rules import WatchRules, went_back

_log = logging.getLogger(__name__)

ItemT = TypeVar("ItemT", bound=Item)

_WATCH_JITTER = 0.2
"""Part of a watch's length that is drawn at random."""


class HistoryLost(RuntimeError):
    """The API server has forgotten what it told before."""


@dataclass(frozen=True)
class Selection(Generic[ItemT, OwnerT, ValueT]):
    """Which objects, and what of them is kept."""

    resource: Resource
    item: type[ItemT]
    """The fields that are decoded."""
    owner_of: Callable[[ItemT], OwnerT | None]
    """Whom the object belongs to; objects of None are not kept."""
    project: Callable[[ItemT], ValueT]
    """What is kept: something small that compares by value. Where it is equal, nothing has changed."""
    namespace: str | None = None
    """None: all namespaces."""
    label_selector: str = ""
    field_selector: str = ""


class Informer(Generic[ItemT, OwnerT, ValueT]):
    """`run` it in a task of its own."""

    def __init__(
        self,
        client: ApiClient,
        selection: Selection[ItemT, OwnerT, ValueT],
        on_change: Callable[[OwnerT], None],
        observer: KubeObserver,
        random: Random,
        rules: WatchRules | None = None,
        limits: WatchLimits | None = None,
        page_size: int = PAGE_SIZE,
    ) -> None:
        self._client = client
        self._selection = selection
        self._on_change = on_change
        self._observer = observer
        self._random = random
        self._rules = rules or WatchRules()
        self._limits = limits or WatchLimits()
        self._page_size = page_size
        self._store: InformerStore[OwnerT, ValueT] = InformerStore()
        self.plural = selection.resource.plural
        """What it watches."""
        self.synced = asyncio.Event()
        """Set once the store is complete, for good."""
        self.served = True
        """Whether the API server serves this type, as far as is known."""
        self.trouble: str | None = None
        """Why the store may be out of date; None while it is not."""
        self._unreadable: set[Key] = set()
        """Objects of whose newest version no projection can be made."""
        self._version = "0"
        """The newest resourceVersion that the server is known to have been at."""
        self._asked = asyncio.Event()
        """Set while a list is asked for that has not begun."""
        self._asking: list[asyncio.Future[None]] = []
        """Who wait for that list."""
        self._served_next: list[asyncio.Future[None]] = []
        """Who wait for the list that goes on, or for the one after it if it fails."""

    def __len__(self) -> int:
        return len(self._store)

    def of(self, owner: OwnerT) -> Mapping[Key, ValueT]:
        """The projections of an owner's objects, by namespace and name: to be read before the next await."""
        return self._store.of(owner)

    def owners(self) -> Iterable[OwnerT]:
        """All who own an object."""
        return self._store.owners()

    async def refresh(self) -> None:
        """List anew, and return when what the server had after this call is in the store.

        A watch whose connection is dead is believed until its silence is noticed. While the server is away,
        this waits, as `run` does, and ends with the task that calls it.
        """
        waiting = asyncio.get_running_loop().create_future()
        self._asking.append(waiting)
        self._asked.set()
        await waiting

    async def run(self) -> None:
        """List, watch, and start again where that is needed, until cancelled. Raises `HistoryLost`."""
        failures = 0
        while True:
            failures = await self._list_until_done(failures)
            failures = await self._watch_until_asked(failures)

    async def _list_until_done(self, failures: int) -> int:
        """The failures in a row so far."""
        denials = 0
        while True:
            try:
                await self._list()
                return failures
            except ApiError as error:
                denials = denials + 1 if isinstance(error, NoSuchResource) else 0
                served = self.served and self.synced.is_set()
                removed = denials > 0 and self._rules.removed(denials, served)
                after = self._rules.after_list(error, failures, self._random, removed)
                self._list_failed(error, after.wait_seconds, removed)
            failures = after.failures
            await asyncio.sleep(after.wait_seconds)

    async def _watch_until_asked(self, failures: int) -> int:
        """Watch until a list is needed, or asked for; the failures in a row so far."""
        watching = asyncio.create_task(self._watch_until_list_needed(failures))
        asked = asyncio.create_task(self._asked.wait())
        try:
            await asyncio.wait({watching, asked}, return_when=asyncio.FIRST_COMPLETED)
            return watching.result() if watching.done() else failures
        finally:
            for task in (watching, asked):
                task.cancel()
            await asyncio.gather(watching, asked, return_exceptions=True)

    async def _watch_until_list_needed(self, failures: int) -> int:
        """The failures in a row so far."""
        loop = asyncio.get_running_loop()
        broke_off = False
        while True:
            began = loop.time()
            error: ApiError | None = None
            try:
                # A server that was restored was away: a watch from a version that it has yet to reach again
                # would be accepted, and tell nothing.
                if broke_off:
                    await self._check_history()
                async with self._watch(self._version) as changes:
                    self.trouble, broke_off = None, False
                    async for change in changes:
                        self._version = change.version
                        self._take(change)
            except ApiError as caught:
                error, broke_off = caught, True
            after = self._rules.after_watch(error, loop.time() - began, failures, self._random)
            self._watch_ended(error, after.relist)
            failures = after.failures
            await asyncio.sleep(after.wait_seconds)
            if after.relist:
                return failures

    async def _check_history(self) -> None:
        chosen = self._selection
        self._reached(await self._client.version_of(chosen.resource, chosen.namespace, chosen.field_selector))

    def _reached(self, version: str) -> None:
        """The server says that it is at this version."""
        if went_back(self._version, version):
            raise HistoryLost(
                f"the API server went back from resourceVersion {self._version} to {version}"
                f" ({self.plural}): it was restored from a backup"
            )

    async def _list(self) -> None:
        """Bring the store up to date with a list."""
        chosen = self._selection
        self._observer.listing(self.plural)
        # Who asks from now on needs a later list: this one may have begun before what they wait for.
        self._asked.clear()
        self._served_next += self._asking
        self._asking = []
        seen: set[Key] = set()
        pages = self._client.pages(
            chosen.resource,
            chosen.item,
            chosen.namespace,
            chosen.label_selector,
            self._page_size,
            chosen.field_selector,
        )
        async for page in pages:
            # The same on every page: the watch goes on from that moment, however long the list took.
            self._reached(page.metadata.resource_version)
            self._version = page.metadata.resource_version
            for item in page.items:
                key = _key(item)
                seen.add(key)
                self._put(key, item)
        # What a whole list lacks was deleted while nobody watched.
        self._tell(self._store.retain(seen))
        self._unreadable &= seen
        self._listed(served=True)

    def _watch(self, version: str) -> AbstractAsyncContextManager[AsyncIterator[Change[ItemT]]]:
        # Watches that began together must not end together.
        shorter = 1.0 - _WATCH_JITTER * self._random.random()
        limits = replace(self._limits, server_seconds=max(1, int(self._limits.server_seconds * shorter)))
        chosen = self._selection
        return self._client.watch(
            chosen.resource,
            chosen.item,
            version,
            namespace=chosen.namespace,
            label_selector=chosen.label_selector,
            field_selector=chosen.field_selector,
            limits=limits,
        )

    def _take(self, change: Change[ItemT]) -> None:
        # A bookmark: only the version moves on.
        if change.item is None:
            return
        self._observer.change_received(self.plural)
        key = _key(change.item)
        if change.kind == "DELETED":
            self._unreadable.discard(key)
            self._tell(self._store.drop(key))
        else:
            self._put(key, change.item)
        self._observer.objects_held(self.plural, len(self._store))

    def _put(self, key: Key, item: ItemT) -> None:
        try:
            # Labels can be changed: an object may become nobody's, or another's.
            owner = self._selection.owner_of(item)
            changed = partial(self._store.drop, key)
            if owner is not None:
                changed = partial(self._store.put, key, owner, self._selection.project(item))
        except Exception:  # noqa: BLE001 - one object must not end what is done for everybody else's
            if key not in self._unreadable:
                self._unreadable.add(key)
                _log.exception("%s %s/%s cannot be read, and stays as it was", self.plural, *key)
            return
        self._unreadable.discard(key)
        self._tell(changed())

    def _tell(self, owners: Iterable[OwnerT]) -> None:
        for owner in owners:
            self._on_change(owner)

    def _listed(self, served: bool) -> None:
        self.served = served
        self.trouble = None
        self.synced.set()
        for waiting in self._served_next:
            if not waiting.done():
                waiting.set_result(None)
        self._served_next = []
        self._observer.objects_held(self.plural, len(self._store))

    def _list_failed(self, error: ApiError, wait_seconds: float, removed: bool) -> None:
        if removed:
            if self.served:
                _log.warning("%s; looked for again every few seconds", error)
            self._tell(self._store.retain(set()))
            self._listed(served=False)
            return
        self.trouble = str(error)
        _log.warning("%s; next try in %.1f s", error, wait_seconds)

    def _watch_ended(self, error: ApiError | None, relist: bool) -> None:
        cause = "closed" if error is None else "gone" if isinstance(error, Gone) else "failed"
        self._observer.watch_ended(self.plural, cause)
        if error is not None:
            self.trouble = str(error)
            _log.info("%s; %s", error, "listing again" if relist else "watching on from there")


def _key(item: Item) -> Key:
    return item.metadata.namespace, item.metadata.name
