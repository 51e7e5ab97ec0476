"""One job, once: observe, decide, act.

Guarantees: at most one status write, only where it differs or before pods are taken away, and before anything
is done that rests on it; no attempt is ended, and none follows it, but by what was just read from the API
server; a plan from an observation that has become stale is dropped, and the job looked at again; a decision
that fails costs its own job alone, whose status tells of it.
"""

import logging
from collections.abc import Awaitable, Callable
from dataclasses import replace
from datetime import datetime
from random import Random
from typing import Any

from rljob_api.job import GROUP, KIND, VERSION
from rljob_api.status import Status
from rljob_client.errors import ApiError, Conflict, Forbidden, Invalid, NoSuchResource, NotFound
from rljob_client.resources import RLJOBS
from rljob_operator.controller.access import CreationError, Unrenderable
from rljob_operator.controller.act import Actor, Stale
from rljob_operator.controller.conflicts import Conflicts
from rljob_operator.controller.creation_history import CreationHistory
from rljob_operator.controller.defects import Defects
from rljob_operator.controller.definition import Definition, own_status
from rljob_operator.controller.jobs import Entry, JobStore
from rljob_operator.controller.observe import Observer, recheck
from rljob_operator.controller.own_statuses import OwnStatuses, changed_fields, same
from rljob_operator.controller.project import JobRef
from rljob_operator.kube.client import ApiClient
from rljob_operator.kube.event_recorder import EventRecorder, Happening, ObjectReference
from rljob_operator.kube.work_queue import NotNow
from rljob_operator.metrics import OperatorMetrics
from rljob_operator.plan.accepted import undecided
from rljob_operator.plan.conditions import clip, finished, holds
from rljob_operator.plan.decide import CONTROLLER, decide, rests_on_absence
from rljob_operator.plan.observed import Job, Observed
from rljob_operator.plan.plan import Event, Plan
from rljob_operator.plan.times import moment

log = logging.getLogger(__name__)

_STALE_SECONDS = 0.25
"""By then the watches have most likely brought what the plan did not know."""
_RESYNC_SECONDS = 600.0
"""A job is looked at again after this long, give or take, whatever was or was not heard of it."""


class Reconciler:
    """The work queue's handler."""

    def __init__(
        self,
        jobs: JobStore,
        observer: Observer,
        actor: Actor,
        client: ApiClient,
        recorder: EventRecorder,
        definition: Definition,
        metrics: OperatorMetrics,
        today: Callable[[], datetime],
        random: Random,
        elsewhere: Callable[[str], Awaitable[float | None]],
    ) -> None:
        """`today`: aware time in UTC. `elsewhere`: seconds for which a namespace's jobs are another
        operator's; None: they are not."""
        self._jobs = jobs
        self._observer = observer
        self._actor = actor
        self._client = client
        self._recorder = recorder
        self._definition = definition
        self._metrics = metrics
        self._today = today
        self._random = random
        self._elsewhere = elsewhere
        self._creations = CreationHistory()
        self._statuses = OwnStatuses()
        self._conflicts = Conflicts()
        self._defects = Defects(random)

    async def reconcile(self, ref: JobRef) -> float | None:
        """Bring the job one step on; seconds until it is to be looked at again. Raises `ApiError`, and
        `NotNow` where nothing can be decided."""
        entry = self._jobs.get(ref)
        if entry is None:
            self._observer.forget(ref)
            self._forget(ref)
            return None
        if (left := await self._elsewhere(ref[0])) is not None:
            # What is remembered would pass for newer than what the other operator writes.
            self._observer.leave(ref)
            self._forget(ref)
            return left
        # The API server would refuse a status with fields that it does not know, time and again.
        if self._definition.trouble is not None:
            if entry.job.managed_by == CONTROLLER and not finished(entry.job.status):
                outdated = Event("Warning", "DefinitionOutdated", clip(self._definition.trouble))
                self._post(ref, entry.job, (outdated,))
            return None
        now = self._today()
        if held := max(self._conflicts.wait(ref, now), self._defects.wait(ref, entry.job, now)):
            return held
        if self._conflicts.of(ref) or self._jobs.behind(ref):
            await self._look_again(ref, entry)
            if (entry := self._jobs.get(ref)) is None:
                return _STALE_SECONDS
        known = replace(entry, job=self._statuses.job(ref, entry.job))
        for anew in (False, True):
            observed = self._creations.known(ref, await self._observer.observe(ref, known, now, anew), now)
            observed = self._statuses.known(ref, observed, now)
            try:
                plan = decide(observed, now)
            # Whatever one job brings about, the others go on.
            except Exception as error:  # noqa: BLE001 - told in the job's status, and in the log
                raise NotNow(await self._undecided(ref, entry, observed, error, now)) from None
            if plan is None or not rests_on_absence(observed.job.status, plan):
                break
        self._defects.passed(ref)
        if plan is None:
            return None
        return await self._carry_out(ref, entry, observed, plan, now)

    async def _carry_out(
        self, ref: JobRef, entry: Entry, observed: Observed, plan: Plan, now: datetime
    ) -> float:
        """Write the status that the plan has, do what it says, and return when the job is to be looked at
        again. Raises `ApiError`."""
        try:
            entry, repair = await self._write_status(ref, entry, observed.job.status, plan, now)
            self._post(ref, entry.job, plan.events)
            self._observer.told(ref, observed)
            # After the status write: an operator that dies in between finds on record what was to be done.
            entry = replace(entry, job=replace(entry.job, status=plan.status))
            await self._actor.carry_out(ref, entry, plan.actions)
        except Forbidden as error:
            if not error.caused_by("NamespaceTerminating"):
                raise
            log.info("%s/%s: goes with its namespace", *ref)
            return self._resync()
        except CreationError as error:
            # What failed is remembered: the next plan, made at once, tells of it in the status and waits.
            if self._creations.failed(ref, entry.job, error, now):
                # A stack trace helps with a defect, not with what the API server refuses.
                trace = error if isinstance(error.cause, Unrenderable) else None
                log.warning("%s/%s: %s", *ref, error, exc_info=trace)
            return _STALE_SECONDS
        except (Conflict, NotFound, Stale) as error:
            log.debug("%s/%s: read again: %s", *ref, error)
            return self._conflicts.met(ref, now)
        self._creations.done(ref, entry.job, plan.actions, now)
        self._conflicts.passed(ref)
        waits = [plan.requeue_after, recheck(observed, now), repair, self._resync()]
        return min(wait for wait in waits if wait is not None)

    def _forget(self, ref: JobRef) -> None:
        self._creations.forget(ref)
        self._statuses.forget(ref)
        self._conflicts.passed(ref)
        self._defects.passed(ref)

    async def _undecided(
        self, ref: JobRef, entry: Entry, observed: Observed, error: Exception, now: datetime
    ) -> float:
        """Tell of a decision that failed; the seconds until the next."""
        wait = self._defects.met(ref, entry.job, now)
        log.error("%s/%s: nothing can be decided; next try in %.1f s", *ref, wait, exc_info=error)
        told = undecided(observed.job, error, now)
        try:
            await self._write_status(ref, entry, observed.job.status, told, now)
        except ApiError as refused:
            log.warning("%s/%s: its status does not tell of that yet: %s", *ref, refused)
            if isinstance(refused, Conflict | NotFound):
                self._conflicts.met(ref, now)
        else:
            self._conflicts.passed(ref)
            self._post(ref, entry.job, told.events)
        return wait

    async def _look_again(self, ref: JobRef, entry: Entry) -> None:
        """The job may have changed, or be gone, without a word yet."""
        try:
            self._jobs.answered(await self._client.get(RLJOBS, *ref, dict[str, Any]))
        except NoSuchResource:
            # Not of the job: a server that has just begun may not know the type yet.
            raise
        except NotFound:
            self._jobs.drop(ref, entry.job.uid)

    def _resync(self) -> float:
        # Spread: jobs that were all seen at the start must not be looked at together for ever.
        return _RESYNC_SECONDS * (0.75 + 0.5 * self._random.random())

    async def _write_status(
        self, ref: JobRef, entry: Entry, before: Status, plan: Plan, now: datetime
    ) -> tuple[Entry, float | None]:
        """Write the plan's status where the job has another, or the plan destroys something; `before`: what
        it was made from. The job then, and the seconds until what others wrote is put right; None: it is."""
        storable = self._definition.storable
        wanted, there = storable(plan.status), storable(entry.job.status)
        if same(wanted, there) and not plan.destroys:
            self._statuses.wrote(ref, entry.job, plan.status)
            return entry, None
        if same(plan.status, before) and not plan.destroys:
            if left := self._statuses.repair(ref, now):
                return entry, left
            changed = ", ".join(changed_fields(wanted, there))
            log.warning("%s/%s: put right what somebody else wrote into its status: %s", *ref, changed)
        metadata = {"namespace": ref[0], "name": ref[1]}
        # Fails where the spec or the runtime's answers changed since: the plan would rest on old ones.
        precondition = {"uid": entry.job.uid, "resourceVersion": entry.version}
        document = {
            "apiVersion": f"{GROUP}/{VERSION}",
            "kind": KIND,
            "metadata": {**metadata, **precondition},
            "status": own_status(wanted),
        }
        try:
            answer = await self._client.apply_status(document)
        except Invalid:
            self._definition.doubt()
            raise
        # Without waiting for the watch: the next decision must not rest on the status before.
        self._jobs.answered(answer)
        self._statuses.wrote(ref, entry.job, plan.status)
        self._count(before, plan.status)
        # As it was decided on, even where the informer has brought something newer by now.
        return replace(entry, version=answer["metadata"]["resourceVersion"]), None

    def _post(self, ref: JobRef, job: Job, events: tuple[Event, ...]) -> None:
        about = ObjectReference(f"{GROUP}/{VERSION}", KIND, *ref, job.uid)
        for event in events:
            log.info("%s/%s: %s: %s", *ref, event.reason, event.message)
            self._recorder.record(about, Happening(event.type, event.reason, event.reason, event.message))

    def _count(self, before: Status, after: Status) -> None:
        # Not by the phase: a suspension that is taken back leaves the attempt running.
        if holds(before, "Running") or not holds(after, "Running"):
            return
        # Later attempts begin long after `start_time`.
        if after.attempt == 1 and after.start_time is not None:
            waited = self._today() - moment(after.start_time)
            self._metrics.time_to_running_seconds.observe(waited.total_seconds())
