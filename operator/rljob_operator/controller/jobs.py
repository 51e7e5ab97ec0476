"""The RLJobs that exist, as values.

Guarantees: a job never goes back to an older version than one that was seen, or written by this process;
what cannot be parsed keeps its name and says why.
"""

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from rljob_api.job import Spec
from rljob_api.stored import StoredError, read_stored
from rljob_api.stored_status import read_status
from rljob_operator.controller.project import JobRef
from rljob_operator.plan.observed import Job
from rljob_operator.plan.times import moment
from rljob_operator.render import refusals
from rljob_operator.render.images import RuntimeImages, with_runtime_image
from rljob_operator.render.labels import queue_of

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
    """Kept up to date by `seen`, `gone` and the answers to status writes."""

    def __init__(self, on_change: Callable[[JobRef], None], images: RuntimeImages) -> None:
        """`images`: of jobs that name none."""
        self._on_change = on_change
        self._images = images
        self._entries: dict[JobRef, Entry] = {}
        self._phases: Counter[str] = Counter()

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, ref: JobRef) -> Entry | None:
        """The job as it was last seen; None where there is none."""
        return self._entries.get(ref)

    def refs(self) -> list[JobRef]:
        """All that exist."""
        return list(self._entries)

    def uids(self) -> dict[JobRef, str]:
        """UIDs of all that exist."""
        return {ref: entry.job.uid for ref, entry in self._entries.items()}

    def count(self, phase: str) -> int:
        """How many jobs are in a phase."""
        return self._phases[phase]

    def seen(self, item: Object) -> None:
        """The API server has this version of a job."""
        metadata = item["metadata"]
        ref, version = (metadata["namespace"], metadata["name"]), metadata["resourceVersion"]
        known = self._entries.get(ref)
        # Versions of one type are numbers that grow; a watch that begins anew may bring older ones.
        if known is not None and known.job.uid == metadata["uid"] and int(version) <= int(known.version):
            return
        job = parse(item, known.job if known is not None else None, self._images)
        self._put(ref, Entry(job, version))
        if known is None or known.job != job:
            self._on_change(ref)

    def gone(self, item: Object) -> None:
        """A job was deleted."""
        metadata = item["metadata"]
        self.drop((metadata["namespace"], metadata["name"]), metadata["uid"])

    def drop(self, ref: JobRef, uid: str) -> None:
        """The job with this UID is not there any more."""
        known = self._entries.get(ref)
        if known is not None and known.job.uid == uid:
            self._put(ref, None)
            self._on_change(ref)

    def _put(self, ref: JobRef, entry: Entry | None) -> None:
        old = self._entries.pop(ref, None)
        if old is not None:
            self._phases[_phase(old)] -= 1
        if entry is not None:
            self._phases[_phase(entry)] += 1
            self._entries[ref] = entry


def _phase(entry: Entry) -> str:
    return entry.job.status.phase or "Pending"


def parse(item: Object, known: Job | None, images: RuntimeImages) -> Job:
    """An RLJob, with the image of `images` where it names none. `known`: an earlier version, whose parsed
    spec is used again where it is the same."""
    metadata, raw = item["metadata"], item.get("spec") or {}
    generation = int(metadata.get("generation", 0))
    # The generation grows with each change of the spec, and with none of the status: most versions of a job
    # differ in their status alone, and need not be validated anew.
    if known is not None and _current(known, metadata["uid"], generation):
        spec, invalid, left_out = known.spec, known.invalid, known.left_out
    else:
        spec, invalid, left_out = _spec(raw, images)
    return Job(
        namespace=metadata["namespace"],
        name=metadata["name"],
        uid=metadata["uid"],
        generation=generation,
        created=moment(metadata["creationTimestamp"]),
        deleting=metadata.get("deletionTimestamp") is not None,
        managed_by=raw.get("managedBy", "rljob.dev/operator"),
        spec=spec,
        invalid=invalid,
        status=read_status(item.get("status")),
        queue=queue_of(metadata.get("labels") or {}),
        left_out=left_out,
    )


def _current(known: Job, uid: str, generation: int) -> bool:
    """Whether the spec of that generation is the one that was parsed before."""
    # The same spec reads otherwise once the definition is replaced by one of this release.
    whole = known.spec is not None and not known.left_out
    return whole and (known.uid, known.generation) == (uid, generation)


def _spec(raw: Object, images: RuntimeImages) -> tuple[Spec | None, str | None, tuple[str, ...]]:
    """The spec, why nothing can be made of it, and which of its fields are left out."""
    try:
        stored = read_stored(Spec, raw)
    except StoredError as error:
        said = "; ".join(f"spec.{problem}" for problem in error.problems)
        return None, f"The spec cannot be read: {said} {_ANOTHER_RELEASE}", ()
    spec = with_runtime_image(stored.value, images)
    found = "; ".join(str(problem) for problem in refusals(spec))
    return spec, found or None, tuple(f"spec.{path}" for path in stored.left_out)
