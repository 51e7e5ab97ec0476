"""Carries out the actions of a plan.

Guarantees: each action may be repeated; one that finds its work done, or made pointless, does nothing. An
action whose precondition does not hold any more raises `Stale`: the job is looked at again.
"""

import logging
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from rljob_client.errors import AlreadyExists, Conflict, NoSuchResource, NotFound
from rljob_client.resources import PODS, RAY_CLUSTERS, RLJOBS
from rljob_operator.controller.access import (
    CreationError,
    NotRestored,
    Taken,
    ensure,
    refusals,
    rendering,
    restore,
)
from rljob_operator.controller.items import PodItem, RayClusterItem
from rljob_operator.controller.jobs import Entry
from rljob_operator.controller.kuberay_schema import KubeRaySchema
from rljob_operator.controller.mutation_cache import MutationCache, SeenCluster, seen_cluster
from rljob_operator.controller.project import JobRef, cluster_job, pod, pod_job
from rljob_operator.kube.client import ApiClient
from rljob_operator.kube.owners import controller_uid
from rljob_operator.plan.conditions import reason
from rljob_operator.plan.observed import GROUPS, Cluster, Record
from rljob_operator.plan.plan import (
    Action,
    CreateCluster,
    DeleteCluster,
    DeleteJob,
    EnsureAccess,
    NoteHead,
    RestoreAccess,
    ScaleGroup,
)
from rljob_operator.plan.scaling import refusal
from rljob_operator.render import JobKey, access_objects, key_secret, ray_cluster
from rljob_operator.render.images import RuntimeImages, with_runtime_image
from rljob_operator.render.labels import HEAD

log = logging.getLogger(__name__)


class Stale(RuntimeError):
    """The cluster has moved on since it was observed."""


class Actor:
    """Writes to the cluster."""

    def __init__(
        self,
        client: ApiClient,
        kuberay: KubeRaySchema,
        mutations: MutationCache,
        clock: Callable[[], float],
        random_bytes: Callable[[int], bytes],
        images: RuntimeImages,
    ) -> None:
        """`clock` in seconds; it only moves forward. `random_bytes`: so many, that nobody can guess.
        `images`: of jobs that name none."""
        self._client = client
        self._kuberay = kuberay
        self._mutations = mutations
        self._clock = clock
        self._random_bytes = random_bytes
        self._images = images

    async def carry_out(self, ref: JobRef, entry: Entry, actions: tuple[Action, ...]) -> None:
        """All actions, in order. `entry`: the job with the plan's status, and the resourceVersion that it has
        with it. Raises `ApiError`, `CreationError` or `Stale` at the first that cannot be done."""
        key = JobKey(*ref, entry.job.uid)
        for action in actions:
            match action:
                case EnsureAccess():
                    await self._access(key, entry, action)
                case RestoreAccess():
                    try:
                        await self._access(key, entry, action)
                    except CreationError as error:
                        raise NotRestored(error) from error
                case CreateCluster():
                    await self._create(ref, key, entry, action)
                case DeleteCluster(name, uid):
                    await self._delete_cluster(ref, name, uid)
                case ScaleGroup():
                    await self._scale(ref, action)
                case NoteHead():
                    await self._note_head(ref, action)
                case DeleteJob(uid):
                    await self._delete_job(ref, uid, entry.version)

    async def _access(self, key: JobKey, entry: Entry, action: EnsureAccess | RestoreAccess) -> None:
        spec, status = entry.job.spec, entry.job.status
        assert spec is not None, "nothing is created for a spec that cannot be read"
        with rendering("What the pods need"):
            objects = access_objects(key, spec)
        # Without the Secret: the processes that run hold the keys of the one that was deleted.
        if isinstance(action, RestoreAccess):
            await restore(self._client, objects)
            return
        # Another reason: this was tried before, and some of them may be there.
        new = status.attempt <= 1 and reason(status, "PodsReady") == "CreatingRayCluster"
        await ensure(self._client, key, key_secret(key, self._random_bytes), objects, new)

    async def _create(self, ref: JobRef, key: JobKey, entry: Entry, action: CreateCluster) -> None:
        spec = entry.job.spec
        assert spec is not None, "nothing is created for a spec that cannot be read"
        status = entry.job.status
        record = Record(status.failures, status.restarts, status.start_time)
        spec = with_runtime_image(spec, self._images)
        kuberay = self._kuberay.capabilities
        with rendering(f"RayCluster {action.name}"):
            manifest = ray_cluster(key, spec, action.attempt, kuberay, entry.job.queue, record)
        try:
            with refusals(manifest):
                answer = await self._client.create(manifest)
        except AlreadyExists as error:
            item = await self._client.get(RAY_CLUSTERS, ref[0], action.name, RayClusterItem)
            # Made by an earlier try whose answer was lost, or by somebody else.
            own = controller_uid(item) == key.uid
            if not own and cluster_job(item) != ref:
                # It is not among those that are watched: nothing tells that it goes.
                text = f"RayCluster {action.name} exists and is not this RLJob's: waiting for it to go."
                raise Taken(text) from error
            self._mutations.created(ref, seen_cluster(item), self._clock())
            if not own:
                raise Stale(f"RayCluster {action.name} is another's") from error
            return
        self._mutations.created(ref, _seen(answer), self._clock())

    async def _delete_cluster(self, ref: JobRef, name: str, uid: str) -> None:
        try:
            # With the UID: one of the same name that was made since is not meant.
            await self._client.delete(RAY_CLUSTERS, ref[0], name, uid)
        except NoSuchResource:
            # Says nothing of this one.
            raise
        except NotFound:
            log.debug("%s/%s: RayCluster %s is gone", *ref, name)
        self._mutations.deleted(ref, uid)

    async def _delete_job(self, ref: JobRef, uid: str, version: str) -> None:
        try:
            # With the version: its time may have been made longer since.
            await self._client.delete(RLJOBS, *ref, uid, version)
        except NotFound:
            log.debug("%s/%s is gone", *ref)

    async def _note_head(self, ref: JobRef, action: NoteHead) -> None:
        # With the UID: one of the same name that was made since is not meant.
        noted = {"uid": action.cluster_uid, "annotations": {HEAD: action.head}}
        try:
            with refusals(_named(action.cluster)):
                answer = await self._client.patch(RAY_CLUSTERS, ref[0], action.cluster, {"metadata": noted})
        except (NotFound, Conflict) as error:
            raise Stale(f"RayCluster {action.cluster} is another one, or is gone") from error
        self._mutations.changed(ref, _seen(answer))

    async def _scale(self, ref: JobRef, action: ScaleGroup) -> None:
        """See `ScaleGroup`."""
        found: dict[str, Any] = await self._client.get(RAY_CLUSTERS, ref[0], action.cluster, dict[str, Any])
        now = _seen(found)
        # No watch may tell of it for a while: the next plan is made from what was read.
        self._mutations.changed(ref, now)
        _check_group(now.cluster, action)
        if action.checked:
            selector = f"ray.io/cluster={action.cluster},ray.io/group={GROUPS[action.pool]}"
            items = await self._client.list(PODS, PodItem, ref[0], selector)
            why = refusal(action, [pod(item) for item in items if pod_job(item) == ref])
            # What the plan was made from may be seconds old, and a pod that is named by mistake is lost.
            if why is not None:
                raise Stale(why)
        groups = [
            _resized(group, action) if group["groupName"] == GROUPS[action.pool] else group
            for group in found["spec"]["workerGroupSpecs"]
        ]
        version = found["metadata"]["resourceVersion"]
        # A merge patch replaces lists whole: all groups go back as they were read.
        changes = {"spec": {"workerGroupSpecs": groups}}
        try:
            with refusals(_named(action.cluster)):
                answer = await self._client.patch(RAY_CLUSTERS, ref[0], action.cluster, changes, version)
        except Conflict as error:
            raise Stale(f"RayCluster {action.cluster} was changed meanwhile") from error
        self._mutations.changed(ref, _seen(answer))


def _named(cluster: str) -> Mapping[str, Any]:
    """A RayCluster of which no more than the name is needed."""
    return {"kind": RAY_CLUSTERS.kind, "metadata": {"name": cluster}}


def _seen(answer: Mapping[str, Any]) -> SeenCluster:
    return seen_cluster(msgspec.convert(answer, RayClusterItem))


def _check_group(now: Cluster, action: ScaleGroup) -> None:
    """Raise `Stale` unless the RayCluster's group is what the plan was made from."""
    if now.uid != action.cluster_uid or now.deleting:
        raise Stale(f"RayCluster {action.cluster} is another one, or is being deleted")
    group = next((group for group in now.groups if group.pool == action.pool), None)
    seen = (action.seen_replicas, action.seen_workers_to_delete)
    if group is None or (group.replicas, group.workers_to_delete) != seen:
        raise Stale(f"group {GROUPS[action.pool]} of RayCluster {action.cluster} has changed")


def _resized(group: Mapping[str, Any], action: ScaleGroup) -> dict[str, Any]:
    strategy = {**(group.get("scaleStrategy") or {}), "workersToDelete": list(action.workers_to_delete)}
    # As in a group that was never made smaller: without the field, not with an empty list.
    if not action.workers_to_delete:
        del strategy["workersToDelete"]
    kept = {name: value for name, value in group.items() if name != "scaleStrategy"}
    return {**kept, "replicas": action.replicas, **({"scaleStrategy": strategy} if strategy else {})}
