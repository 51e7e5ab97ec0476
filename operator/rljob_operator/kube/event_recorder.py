"""Reports to people what happened to an object: events.k8s.io/v1 Events, as `kubectl describe` shows them.

Guarantees: `record` returns at once, whatever the API server does; equal happenings are counted into one
Event, whose count is written now and then; one object can not flood its namespace; a bounded number of
reports waits in memory, and each one that is not written is counted.
"""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from random import Random
from typing import Any, Literal

from rljob_client.errors import AlreadyExists, ApiError, NoSuchResource, NotFound
from rljob_client.resources import EVENTS
from rljob_operator.kube.client import ApiClient
from rljob_operator.kube.event_series import Series, SeriesBook
from rljob_operator.kube.fence import LeaseLost
from rljob_operator.kube.observer import KubeObserver

_log = logging.getLogger(__name__)

CONTROLLER = "rljob.dev/operator"
_LONGEST_NAME = 253
_LONGEST_NOTE = 1024
_LONGEST_INSTANCE = 128
"""Limits of the API server: characters of a name and of an instance, bytes of a note."""


@dataclass(frozen=True)
class ObjectReference:
    """What an Event is about."""

    api_version: str
    kind: str
    namespace: str
    name: str
    uid: str


@dataclass(frozen=True)
class Happening:
    """What is said about it; equal ones are counted together."""

    type: Literal["Normal", "Warning"]
    reason: str
    """Why, CamelCase, for programs."""
    action: str
    """What the operator did or tried, CamelCase."""
    note: str
    """For people; cut at 1024 bytes."""


@dataclass
class _Report:
    about: ObjectReference
    what: Happening
    series: Series
    """Shared with the book: its count is that of the time when this is written."""
    due: float
    creates: bool


class EventRecorder:
    """Takes reports at any time and writes them between `start` and `stop`."""

    def __init__(
        self,
        instance: str,
        observer: KubeObserver,
        random: Random,
        today: Callable[[], datetime] = lambda: datetime.now(UTC),
        repeat_seconds: float = 30.0,
        most_pending: int = 1000,
    ) -> None:
        """`instance`: which of the operator's processes this is, such as its pod's name. `repeat_seconds`:
        between two writes of one Event's count. `most_pending`: reports that may wait; more are dropped."""
        self._instance = instance[:_LONGEST_INSTANCE]
        self._observer = observer
        self._random = random
        self._today = today
        self._repeat_seconds = repeat_seconds
        self._most_pending = most_pending
        self._book = SeriesBook()
        self._pending: dict[str, _Report] = {}
        """By the Event's name, in order."""
        self._wake = asyncio.Event()
        self._closing = False
        self._task: asyncio.Task[None] | None = None

    def record(self, about: ObjectReference, what: Happening) -> None:
        """Something happened."""
        now = asyncio.get_running_loop().time()
        verdict, series = self._book.happened(about, what, self._name(about), now)
        # What waits is written with the count of that time, which includes this one.
        if series.name in self._pending:
            return
        if verdict == "drop" or len(self._pending) >= self._most_pending:
            self._book.forget(about, what)
            self._count("dropped")
            return
        creates = verdict == "create"
        self._pending[series.name] = _Report(
            about, what, series, now if creates else now + self._repeat_seconds, creates
        )
        self._wake.set()

    def start(self, client: ApiClient) -> None:
        """Begin to write, through `client`."""
        self._closing = False
        self._task = asyncio.create_task(self._write_all(client))

    async def stop(self, grace_seconds: float) -> None:
        """Write what waits, which may take so long; then nothing more."""
        self._closing = True
        self._wake.set()
        if self._task is not None:
            done, _ = await asyncio.wait([self._task], timeout=grace_seconds)
            if not done:
                self._task.cancel()
                await asyncio.wait([self._task])

    async def _write_all(self, client: ApiClient) -> None:
        while True:
            self._wake.clear()
            wait = self._next_due()
            if wait is None and self._closing:
                return
            if wait is None or wait > 0:
                await self._sleep(wait)
                continue
            report = self._take_due()
            try:
                await self._write(client, report)
            except (ApiError, LeaseLost) as error:
                # Those that would be read in a namespace that goes, go with it.
                in_vain = _namespace_goes(error)
                self._count("dropped" if in_vain else "failed")
                level = logging.DEBUG if in_vain else logging.WARNING
                _log.log(level, "event %s was not written: %s", report.what.reason, error)
            except Exception:  # noqa: BLE001 - a bug in one report must not silence the others
                self._count("failed")
                _log.exception("event %s was not written", report.what.reason)

    def _next_due(self) -> float | None:
        """Seconds until something is to be written; None when nothing is."""
        if not self._pending:
            return None
        # Counts that are not due yet are written too: they are in this memory alone.
        if self._closing:
            return 0.0
        return min(report.due for report in self._pending.values()) - asyncio.get_running_loop().time()

    async def _sleep(self, seconds: float | None) -> None:
        try:
            async with asyncio.timeout(seconds):
                await self._wake.wait()
        except TimeoutError:
            return

    def _take_due(self) -> _Report:
        name = min(self._pending, key=lambda name: self._pending[name].due)
        return self._pending.pop(name)

    async def _write(self, client: ApiClient, report: _Report) -> None:
        if report.creates:
            try:
                await client.create(self._manifest(report))
            except AlreadyExists:
                _log.debug("the event was there: an earlier attempt was carried out")
            self._count("created")
            return
        series = {"series": self._series(report.series)}
        try:
            await client.patch(EVENTS, report.about.namespace, report.series.name, series)
            self._count("repeated")
        except NotFound:
            # Events expire; what goes on happening is reported anew.
            self._book.forget(report.about, report.what)
            self.record(report.about, report.what)

    def _manifest(self, report: _Report) -> dict[str, Any]:
        about, what = report.about, report.what
        manifest = {
            "apiVersion": EVENTS.api_version,
            "kind": EVENTS.kind,
            "metadata": {"namespace": about.namespace, "name": report.series.name},
            "eventTime": self._now(),
            "type": what.type,
            "reason": what.reason,
            "action": what.action,
            "note": _cut(what.note),
            "reportingController": CONTROLLER,
            "reportingInstance": self._instance,
            "regarding": {
                "apiVersion": about.api_version,
                "kind": about.kind,
                "namespace": about.namespace,
                "name": about.name,
                "uid": about.uid,
            },
        }
        if report.series.count > 1:
            manifest["series"] = self._series(report.series)
        return manifest

    def _series(self, series: Series) -> dict[str, Any]:
        return {"count": series.count, "lastObservedTime": self._now()}

    def _name(self, about: ObjectReference) -> str:
        suffix = f".{self._random.getrandbits(64):016x}"
        # Random: several replicas and processes tell of the same object. What is cut off must not leave a dot
        # or a dash before the suffix's dot: no name may have that.
        return about.name[: _LONGEST_NAME - len(suffix)].rstrip(".-") + suffix

    def _now(self) -> str:
        return self._today().strftime("%Y-%m-%dT%H:%M:%S.%fZ")

    def _count(self, outcome: str) -> None:
        self._observer.event_reported(outcome)


def _namespace_goes(error: Exception) -> bool:
    """Whether an Event was refused because its namespace is being deleted, or is gone."""
    if not isinstance(error, ApiError) or isinstance(error, NoSuchResource):
        return False
    # What is to be created can itself not be missing.
    return isinstance(error, NotFound) or error.caused_by("NamespaceTerminating")


def _cut(note: str) -> str:
    encoded = note.encode()
    if len(encoded) <= _LONGEST_NOTE:
        return note
    return encoded[: _LONGEST_NOTE - 3].decode("utf-8", "ignore") + "…"
