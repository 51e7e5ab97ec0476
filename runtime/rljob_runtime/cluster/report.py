"""Writes `status.training` of the RLJob.

Guarantees: never blocks the training; writes answers that the operator waits for at once, progress at most
every `PROGRESS_SECONDS`, and what has not changed every `REPORT_SECONDS`, as a sign of life; tries again,
with the newest state, for as long as the server does not take it, and leaves out what its definition of
RLJobs does not know, for as long as it does not. Other fields of the status stay as they are: server-side
apply with a field manager of its own. A write that takes back the release of a pod succeeds only if the
operator has not begun to remove that pod.
"""

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import Any

from rljob_api import GROUP, KIND, VERSION
from rljob_client.backoff import Failures
from rljob_client.client import ApiClient
from rljob_client.errors import ApiError, Conflict
from rljob_client.retry import PATIENT_BACKOFF
from rljob_runtime.cluster.older_definition import undeclared
from rljob_runtime.cluster.own_job import Identity
from rljob_runtime.site.desired import DesiredState
from rljob_runtime.site.status_draft import REPORT_SECONDS, StatusDraft

log = logging.getLogger(__name__)

PROGRESS_SECONDS = 5.0
"""Shortest time between two writes of progress: each wakes all who watch the RLJob."""
RELOOK_SECONDS = 600.0
"""How long fields are left out that the server did not know: the definition may be brought up to date while
the job runs, and a refused write costs little."""


class Reporter:
    """See the module's guarantees."""

    def __init__(
        self,
        client: ApiClient,
        identity: Identity,
        uid: str,
        draft: StatusDraft,
        newest: Callable[[], DesiredState],
        took_back: Callable[[], None],
        rng: random.Random,
        clock: Callable[[], float],
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        """`uid`: metadata.uid of the RLJob, so that a later one of the same name is left alone. `newest` is
        the RLJob as it was last seen; `took_back` is called when fewer pods are `offered`. `clock` is in
        seconds and never goes back."""
        self._client = client
        self._identity = identity
        self._uid = uid
        self._draft = draft
        self._newest = newest
        self._took_back = took_back
        self._failures = Failures(PATIENT_BACKOFF, rng)
        self._clock = clock
        self._sleep = sleep
        self._written: dict[str, Any] | None = None
        self._written_at = float("-inf")
        self._wrote = asyncio.Event()
        self._undeclared: frozenset[str] = frozenset()
        """Fields that the server does not know."""
        self._left_out_at = float("-inf")
        self._told: frozenset[str] = frozenset()
        """Fields of which a person was told that they are left out."""

    async def run(self) -> None:
        """Write whatever is new, and now and then what is not, until cancelled."""
        while True:
            await self._first(self._draft.changed, self._written_at + REPORT_SECONDS)
            sign_of_life = not self._draft.changed.is_set()
            await self._pause()
            await self._write_newest(sign_of_life)

    async def flush(self, seconds: float) -> bool:
        """Wait until everything is written, at most `seconds`, while `run` runs; whether it is."""
        # Ends the pause between two writes of progress.
        self._draft.urgent.set()
        try:
            async with asyncio.timeout(seconds):
                while self._written != self._declared(self._draft.training):
                    self._wrote.clear()
                    await self._wrote.wait()
        except TimeoutError:
            return False
        return True

    async def _pause(self) -> None:
        """Let time pass since the last write, unless somebody waits for an answer."""
        if self._written_at + PROGRESS_SECONDS > self._clock():
            await self._first(self._draft.urgent, self._written_at + PROGRESS_SECONDS)

    async def _first(self, event: asyncio.Event, time: float) -> None:
        """Wait for the event, but no longer than until `time` of the clock."""
        happened = asyncio.ensure_future(event.wait())
        resting = asyncio.ensure_future(self._sleep(max(0.0, time - self._clock())))
        try:
            await asyncio.wait((happened, resting), return_when=asyncio.FIRST_COMPLETED)
        finally:
            happened.cancel()
            resting.cancel()

    async def _write_newest(self, sign_of_life: bool) -> None:
        """Write the newest state, with `sign_of_life` also where nothing of it is new; tries until it is
        written."""
        if self._clock() - self._left_out_at >= RELOOK_SECONDS:
            self._undeclared = frozenset()
        while True:
            # Before `take`, which adds what this write would release.
            offered = self._draft.offered
            training = self._declared(self._draft.take())
            seen, released = self._newest(), training["released"]
            # Pods that the operator may have read as released are released no more.
            takes_back = bool(self._draft.offered - set(released))
            if training == self._written and not (takes_back or sign_of_life):
                break
            # Had the operator begun to remove such a pod, the object would have a newer version, and the
            # write fails.
            body = self._body(training, seen.version if takes_back else None)
            try:
                await self._client.apply_status(body)
            except ApiError as error:
                # Tried again also where it is refused: a deleted Role is made again, and the training goes on
                # meanwhile.
                level = logging.INFO if error.retryable or isinstance(error, Conflict) else logging.WARNING
                log.log(level, "the status is not written yet: %s", error)
                # Such as a conflict, or no connection: this attempt has offered nothing to the operator.
                if error.without_effect and offered != self._draft.offered:
                    self._draft.not_written(offered)
                    self._took_back()
                why = str(error)
            else:
                self._failures.worked()
                self._written, self._written_at = training, self._clock()
                if takes_back:
                    self._draft.written(released, seen.doomed)
                    self._took_back()
                break
            # The operator waits for answers: it gets the others without a pause.
            if not self._leave_out(undeclared(why)):
                await self._sleep(self._failures.failed())
        self._wrote.set()

    def _declared(self, training: dict[str, Any]) -> dict[str, Any]:
        """What the server knows of `status.training`."""
        return {name: value for name, value in training.items() if name not in self._undeclared}

    def _leave_out(self, fields: frozenset[str]) -> bool:
        """Leave these fields out for a while; whether any of them was not left out before."""
        if fields <= self._undeclared:
            return False
        self._undeclared |= fields
        self._left_out_at = self._clock()
        if not fields <= self._told:
            self._told |= fields
            log.warning(
                "the cluster's definition of RLJobs is older than this runtime: left out of "
                "status.training: %s. Apply the definition of the runtime's release, or use the image of the "
                "operator's release",
                ", ".join(sorted(self._told)),
            )
        return True

    def _body(self, training: dict[str, Any], version: str | None) -> dict[str, Any]:
        """`version`: the resourceVersion that the object must still have; None: any."""
        written = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        metadata = {"name": self._identity.name, "namespace": self._identity.namespace, "uid": self._uid}
        if version is not None:
            metadata["resourceVersion"] = version
        return {
            "apiVersion": f"{GROUP}/{VERSION}",
            "kind": KIND,
            "metadata": metadata,
            "status": {"training": {**training, "time": written}},
        }
