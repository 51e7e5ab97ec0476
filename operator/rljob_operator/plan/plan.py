"""What is to be done about one RLJob: the only output of its decisions.

Guarantees: a plan is complete and may be carried out any number of times. Whoever carries it out does so in
this order, and begins anew with a fresh observation as soon as one part fails:

1. write `status` where it differs from the observed one or the plan `destroys`, by server-side apply without
   `training` and with the observed resourceVersion. What a later action rests on (the attempt's number, the
   victims of a scale-down) is thus on record before the action, and where the spec or the runtime's answer
   changed meanwhile, the write fails and nothing of the plan is done;
2. post `events`;
3. carry out `actions` in order;
4. look again after `requeue_after` seconds, or as soon as anything changes.
"""

from dataclasses import dataclass
from typing import Literal

from rljob_api.status import Status
from rljob_operator.plan.observed import Pool


@dataclass(frozen=True, slots=True)
class EnsureAccess:
    """The job's Secret exists, and its ServiceAccount, Role, RoleBinding and NetworkPolicy are as
    rendered."""


@dataclass(frozen=True, slots=True)
class RestoreAccess:
    """The job's ServiceAccount, Role, RoleBinding and NetworkPolicy exist. Those that are there are left as
    they are. The Secret is left out: the processes that run have the keys of the one that was deleted."""


@dataclass(frozen=True, slots=True)
class CreateCluster:
    """Create the RayCluster of an attempt. Create only, never update: where one of that name exists already,
    this is done."""

    name: str
    attempt: int


@dataclass(frozen=True, slots=True)
class DeleteCluster:
    """Delete a RayCluster in the background, with the UID as a precondition; done where it is gone."""

    name: str
    uid: str


@dataclass(frozen=True, slots=True)
class ScaleGroup:
    """Change one worker group's replicas and workersToDelete in one patch, all else untouched.

    The patch carries the resourceVersion of a RayCluster that was just read and whose group is still
    `seen_replicas` and `seen_workers_to_delete`. Where `checked`, the group's pods are listed from etcd (no
    resourceVersion) after that read, right before the patch, and `scaling.refusal` must find nothing in them.
    Otherwise nothing is patched and the job is looked at again.
    """

    cluster: str
    cluster_uid: str
    pool: Pool
    seen_replicas: int
    seen_workers_to_delete: tuple[str, ...]
    replicas: int
    workers_to_delete: tuple[str, ...]
    victims_must_live: tuple[tuple[str, str], ...] = ()
    """(name, uid) of pods that are newly listed: each must exist and not be deleted yet."""
    must_not_run: frozenset[str] = frozenset()
    """Those of them that are chosen because they have not started: they must still be Pending."""
    must_be_gone: tuple[str, ...] = ()
    """Names that leave the list: no such pod may exist."""
    unlisted_at_least: int = 0
    """Replicas are raised because this many pods of the group are not listed: still so many must exist."""

    @property
    def checked(self) -> bool:
        """Whether the pods must be read afresh before the patch."""
        relisted = self.workers_to_delete != self.seen_workers_to_delete
        return relisted or self.replicas < self.seen_replicas or self.unlisted_at_least > 0


@dataclass(frozen=True, slots=True)
class NoteHead:
    """Note on a RayCluster, by its UID, which head pod the attempt has."""

    cluster: str
    cluster_uid: str
    head: str
    """UID of the head pod."""


@dataclass(frozen=True, slots=True)
class DeleteJob:
    """Delete the RLJob in the background, with the UID and the resourceVersion as preconditions."""

    uid: str


Action = EnsureAccess | RestoreAccess | CreateCluster | DeleteCluster | ScaleGroup | NoteHead | DeleteJob


@dataclass(frozen=True, slots=True)
class Event:
    """One Kubernetes Event about the job."""

    type: Literal["Normal", "Warning"]
    reason: str
    """One CamelCase word; stable."""
    message: str
    """At most 1024 characters."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What is to be done."""

    status: Status
    """The whole status, with `training` as observed; equal to the observed one where nothing changed."""
    actions: tuple[Action, ...] = ()
    events: tuple[Event, ...] = ()
    requeue_after: float | None = None
    """Seconds until time alone changes the plan; None: it does not."""

    @property
    def destroys(self) -> bool:
        """Whether an action takes pods away. That must not rest on an old view of the RLJob: its status is
        then written even where it is the same, which fails where the RLJob has changed, and changes nothing
        where it has not."""
        return any(
            isinstance(action, DeleteCluster)
            or (isinstance(action, ScaleGroup) and action.replicas < action.seen_replicas)
            for action in self.actions
        )
