"""The RLJobs that exist, as values.

What the informer has of them counts, and above it the answers to this process's own requests, until the
informer has brought something as new. What kopf hears only tells that there is something newer.

Guarantees: a job never goes back to an older version than one that was read, or written by this process;
what cannot be parsed keeps its name and says why, whatever reading it brings about.
"""

import logging
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from rljob_api.job import Spec
from rljob_api.stored import StoredError, TooDeep, read_stored
from rljob_api.stored_status import read_status
from rljob_client.objects import ObjectMeta
from rljob_operator.controller.items import RLJobItem
from rljob_operator.controller.project import JobRef
from rljob_operator.plan.observed import Job
from rljob_operator.plan.times import moment
from rljob_operator.render import refusals
from rljob_operator.render.images import RuntimeImages, with_runtime_image
from rljob_operator.render.labels import queue_of

log = logging.getLogger(__name__)

Object = Mapping[str, Any]

_ANOTHER_RELEASE = (
    "(The cluster's definition of RLJobs accepted it: it and this operator are of different releases. Bring "
    "both to the same one.)"
)


@dataclass(frozen=True, slots=True)
class Entry:
    """A job and the resourceVersion that it was read at."""

    job: Job
    version: str


class JobStore:
    """Kept up to date by `seen`, with what the informer has, and by `answered`."""

    def __init__(self, on_change: Callable[[JobRef], None], images: RuntimeImages) -> None:
        """`images`: of jobs that name none."""
        self._on_change = on_change
        self._images = images
        self._entries: dict[JobRef, Entry] = {}
        self._answers: dict[JobRef, int] = {}
        """Versions of answers that the informer has yet to bring."""
        self._gone: dict[JobRef, str] = {}
        """UIDs of jobs that the informer has yet to find gone."""
        self._heard: dict[JobRef, int] = {}
        """The newest versions of which there was word, where the informer has yet to bring them."""
        self._phases: dict[str, Counter[str]] = {}
        """How many jobs are in each phase, by namespace."""

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, ref: JobRef) -> Entry | None:
        """The job as it was last seen; None where there is none."""
        return self._entries.get(ref)

    def refs(self) -> list[JobRef]:
        """All that exist."""
        return list(self._entries)

    def count(self, phase: str, left: Callable[[str], bool]) -> int:
        """How many jobs are in a phase, without those of namespaces that are `left` to others."""
        return sum(phases[phase] for namespace, phases in self._phases.items() if not left(namespace))

    def read(self, item: RLJobItem) -> Entry:
        """What is kept of a job."""
        known = self._entries.get(job_key(item))
        job = parse(item, known.job if known is not None else None, self._images)
        return Entry(job, item.metadata.resource_version)

    def seen(self, ref: JobRef, entry: Entry | None) -> None:
        """This is what the informer has of a job; None: there is none."""
        if entry is None:
            for notes in (self._answers, self._gone, self._heard):
                notes.pop(ref, None)
            self._keep(ref, None)
            return
        # Versions of one type are numbers that grow.
        version = int(entry.version)
        if version < self._answers.get(ref, 0) or self._gone.get(ref) == entry.job.uid:
            return
        self._answers.pop(ref, None)
        self._gone.pop(ref, None)
        self._caught_up(ref, version)
        self._keep(ref, entry)

    def answered(self, item: Object) -> None:
        """The API server has answered a request of this process with a job that is known."""
        # Only the metadata is converted, which has a form: that would copy all else, as deep as it is.
        metadata = msgspec.convert(item["metadata"], ObjectMeta)
        entry = self.read(RLJobItem(metadata, item.get("spec"), item.get("status")))
        ref, version = (entry.job.namespace, entry.job.name), int(entry.version)
        known = self._entries.get(ref)
        self._heard.pop(ref, None)
        if known is None or version <= int(known.version):
            return
        self._answers[ref] = version
        self._keep(ref, entry)

    def drop(self, ref: JobRef, uid: str) -> None:
        """The API server has said that the job with this UID is not there any more."""
        known = self._entries.get(ref)
        if known is not None and known.job.uid == uid:
            self._gone[ref] = uid
            self._answers.pop(ref, None)
            self._heard.pop(ref, None)
            self._keep(ref, None)

    def heard(self, item: Object) -> bool:
        """There is word of this version of a job; whether it is newer than the one that is known."""
        metadata = item["metadata"]
        ref, version = (metadata["namespace"], metadata["name"]), int(metadata["resourceVersion"])
        known = self._entries.get(ref)
        if known is None or version <= int(known.version):
            return False
        self._heard[ref] = max(version, self._heard.get(ref, 0))
        return True

    def behind(self, ref: JobRef) -> bool:
        """Whether there was word of a newer version than the one that is known."""
        return ref in self._heard

    def _caught_up(self, ref: JobRef, version: int) -> None:
        if version >= self._heard.get(ref, 0):
            self._heard.pop(ref, None)

    def _keep(self, ref: JobRef, entry: Entry | None) -> None:
        """Tell of the job where it differs from before."""
        known = self._entries.get(ref)
        self._put(ref, entry)
        if (known and known.job) != (entry and entry.job):
            self._on_change(ref)

    def _put(self, ref: JobRef, entry: Entry | None) -> None:
        old = self._entries.pop(ref, None)
        phases = self._phases.setdefault(ref[0], Counter())
        if old is not None:
            phases[_phase(old)] -= 1
        if entry is not None:
            phases[_phase(entry)] += 1
            self._entries[ref] = entry
        if not phases.total():
            del self._phases[ref[0]]


def _phase(entry: Entry) -> str:
    return entry.job.status.phase or "Pending"


def job_key(item: RLJobItem) -> JobRef:
    """Namespace and name of an RLJob."""
    return item.metadata.namespace, item.metadata.name


def parse(item: RLJobItem, known: Job | None, images: RuntimeImages) -> Job:
    """An RLJob. `images`: of jobs that name none, to see whether it can be rendered. `known`: an earlier
    version, whose parsed spec is used again where it is the same."""
    metadata, raw = item.metadata, item.spec or {}
    # The generation grows with each change of the spec, and with none of the status: most versions of a job
    # differ in their status alone, and need not be validated anew.
    if known is not None and _current(known, metadata.uid, metadata.generation):
        spec, invalid, left_out = known.spec, known.invalid, known.left_out
    else:
        told = known is not None and (known.uid, known.generation) == (metadata.uid, metadata.generation)
        spec, invalid, left_out = _spec(job_key(item), raw, images, told)
    return Job(
        namespace=metadata.namespace,
        name=metadata.name,
        uid=metadata.uid,
        generation=metadata.generation,
        created=moment(metadata.creation_timestamp),
        deleting=metadata.deletion_timestamp is not None,
        managed_by=raw.get("managedBy", "rljob.dev/operator"),
        spec=spec,
        invalid=invalid,
        status=read_status(item.status),
        queue=queue_of(metadata.labels),
        left_out=left_out,
    )


def _current(known: Job, uid: str, generation: int) -> bool:
    """Whether the spec of that generation is the one that was parsed before."""
    # The same spec reads otherwise once the definition is replaced by one of this release.
    whole = known.spec is not None and not known.left_out
    return whole and (known.uid, known.generation) == (uid, generation)


def _spec(
    ref: JobRef, raw: Object, images: RuntimeImages, told: bool
) -> tuple[Spec | None, str | None, tuple[str, ...]]:
    """The spec, why nothing can be made of it, and which of its fields are left out. `told`: the log has a
    defect already."""
    try:
        stored = read_stored(Spec, raw)
        found = "; ".join(str(problem) for problem in refusals(with_runtime_image(stored.value, images)))
    except StoredError as error:
        said = "; ".join(f"spec.{problem}" for problem in error.problems)
        why = "" if isinstance(error, TooDeep) else f" {_ANOTHER_RELEASE}"
        return None, f"The spec cannot be read: {said}{why}", ()
    # Whatever one spec brings about, the others' jobs go on.
    except Exception as error:
        if not told:
            log.exception("%s/%s: the spec cannot be read", *ref)
        return None, f"The spec cannot be read, by a defect of the operator: {type(error).__name__}.", ()
    return stored.value, found or None, tuple(f"spec.{path}" for path in stored.left_out)
