"""How a worker group is resized without KubeRay ever choosing a victim.

KubeRay deletes every pod that `workersToDelete` names, whatever `replicas` says, and leaves it out of its
count; it then creates or deletes - arbitrary - pods until `replicas` remain (v1.4 to v1.7,
raycluster_controller.go, reconcilePods). Hence the protocol:

(a) one patch lowers `replicas` and names the pods that go; never one without the other;
(b) a name stays until its pod is gone from the API server: a pod that still terminates and is not named
    counts;
(c) a second patch clears the names, and changes nothing else;
(d) pods are never deleted directly;
(e) no patch lowers and raises;
(f) where KubeRay replaced a victim before it saw the patch there is one pod too many: `replicas` goes up
    again at once, and the scale-down then begins anew;
(g) a pod that should have been gone for half a minute is on a node that does not answer, and KubeRay does not
    replace it as long as it counts: it is named, with `replicas` as they are, so that it does not.

Guarantees: a pod goes only if the runtime released it, or it never started, or drainGraceSeconds are over.
The victims are in `status.scaleDowns` before the patch, written with the resourceVersion that their release
was read at; a runtime that takes back no pod listed there never loses a request. No trainer stands still for
a patch that is refused.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from rljob_api.status import ScaleDown, TrainingStatus
from rljob_operator.plan.attempt import alive
from rljob_operator.plan.deadlines import LATE_DELETION
from rljob_operator.plan.observed import Cluster, Group, Pod
from rljob_operator.plan.plan import ScaleGroup
from rljob_operator.plan.times import after, stamp


@dataclass(frozen=True, slots=True)
class Answers:
    """What the runtime said about the spec as it is now."""

    released: frozenset[str] = frozenset()
    """Rollout pods that hold no request and get none."""
    trainer_stopped_for: int | None = None
    """The trainer stands still until the pool has this many workers."""


@dataclass(frozen=True, slots=True)
class Resize:
    """What is to be done about one pool."""

    entry: ScaleDown | None
    """For `status.scaleDowns`; None: nothing is under way."""
    action: ScaleGroup | None = None
    wake: datetime | None = None
    """When time alone changes this."""


def answers(training: TrainingStatus | None, attempt: int, generation: int) -> Answers:
    """The runtime's answers, unless they come from another attempt or to another spec."""
    # An answer to an earlier spec may release pods that the newer one asks for.
    if training is None or training.attempt != attempt or training.observed_generation < generation:
        return Answers()
    return Answers(frozenset(training.released), training.trainer_stopped_for)


@dataclass(frozen=True, slots=True)
class _State:
    """A worker group, the pods that exist of it, and the number of workers that the spec asks for."""

    cluster: Cluster
    group: Group
    pods: tuple[Pod, ...]
    desired: int
    now: datetime

    @property
    def replicas(self) -> int:
        return self.group.replicas

    @property
    def listed(self) -> tuple[str, ...]:
        return self.group.workers_to_delete

    @property
    def unlisted(self) -> list[Pod]:
        """The pods that KubeRay counts."""
        return [pod for pod in self.pods if pod.name not in self.listed]

    @property
    def leaving(self) -> tuple[str, ...]:
        """Names on the list whose pods still exist."""
        names = {pod.name for pod in self.pods}
        return tuple(name for name in self.listed if name in names)

    @property
    def stuck(self) -> list[str]:
        """Names of the pods that do not go although they should have long ago."""
        return [pod.name for pod in self.pods if pod.deleting is not None and self.now >= _late(pod.deleting)]

    def patch(self, replicas: int, names: tuple[str, ...], unlisted_at_least: int = 0) -> ScaleGroup:
        return ScaleGroup(
            cluster=self.cluster.name,
            cluster_uid=self.cluster.uid,
            pool=self.group.pool,
            seen_replicas=self.replicas,
            seen_workers_to_delete=self.listed,
            replicas=replicas,
            workers_to_delete=names,
            must_be_gone=tuple(name for name in self.listed if name not in names),
            unlisted_at_least=unlisted_at_least,
        )


def resize(
    cluster: Cluster,
    group: Group,
    pods: tuple[Pod, ...],
    desired: int,
    entry: ScaleDown | None,
    said: Answers,
    grace: float,
    now: datetime,
    refused: datetime | None = None,
) -> Resize:
    """The next step that brings the group to the size that the spec asks for.

    `pods` are all pods of the pool in this cluster, `desired` is the number of workers that the spec asks
    for, `entry` the pool's in the observed status, `grace` is in seconds. `refused`: when changes of the
    RayCluster, which the API server has refused, are tried again; None: it has refused none."""
    state = _State(cluster, group, pods, desired, now)
    entry = _entry(state, entry)
    if group.pool == "trainer" and entry is not None:
        refused = refused if desired != group.replicas else None
        entry = entry.model_copy(update={"refused": refused is not None})
        # Its victims stay until then: the trainer goes on with all pods.
        if refused is not None and now < refused:
            return Resize(entry, wake=refused)
    # As KubeRay counts: without the pods that are named.
    counted = len(state.unlisted)
    # Rule (f): lower than what KubeRay counts, and it would choose which pod goes.
    if counted > state.replicas:
        return Resize(entry, state.patch(counted, state.listed, unlisted_at_least=counted))
    trainer = group.pool == "trainer"
    # More rollout workers disturb nobody; another number of trainers needs the runtime to stop first.
    if desired > state.replicas and not trainer:
        return Resize(entry, state.patch(desired, state.listed))
    wake = None
    if entry is not None and desired != state.replicas:
        deadline = after(entry.asked_time or stamp(now), grace)
        late = now >= deadline
        chosen = (
            _trainer_step(state, said, late, refused is not None)
            if trainer
            else _rollout_step(state, said, late)
        )
        if chosen is not None:
            return _carried_out(state, entry, chosen)
        wake = None if late else deadline
    # Rule (c): all named pods are gone, so the names are cleared. After the steps above: a further
    # scale-down clears them in its own patch.
    if state.listed and not state.leaving:
        return Resize(entry, state.patch(state.replicas, ()), wake)
    # Rule (g), where the pool has the size that is asked for.
    stuck = [name for name in state.stuck if name not in state.listed]
    if stuck and desired == state.replicas:
        return Resize(entry, state.patch(state.replicas, (*state.listed, *stuck)), wake)
    return Resize(entry, None, min((wake, _next_stuck(state)), key=_or_never))


def _late(deleting: datetime) -> datetime:
    return deleting + LATE_DELETION


def _next_stuck(state: _State) -> datetime | None:
    """When the next pod that is being deleted, and counts, is to be named."""
    return min((_late(pod.deleting) for pod in state.unlisted if pod.deleting is not None), default=None)


def _or_never(time: datetime | None) -> datetime:
    return datetime.max.replace(tzinfo=UTC) if time is None else time


def _entry(state: _State, entry: ScaleDown | None) -> ScaleDown | None:
    """The pool's entry in `status.scaleDowns` while nothing new is chosen. Pods that are named only because
    they are stuck need none: whoever waits for the entry to go would wait for their node."""
    waits = state.desired < state.replicas or (
        state.group.pool == "trainer" and state.desired != state.replicas
    )
    asked = [name for name in state.leaving if name not in state.stuck]
    if not waits and (not state.listed or (entry is None and not asked)):
        return None
    if entry is None or entry.replicas != state.desired:
        entry = ScaleDown(pool=state.group.pool, replicas=state.desired, asked_time=stamp(state.now))
    return entry.model_copy(update={"victims": sorted(state.listed)})


@dataclass(frozen=True, slots=True)
class _Step:
    """A patch that is to be made."""

    replicas: int
    victims: tuple[Pod, ...] = ()
    must_not_run: frozenset[str] = frozenset()
    timed_out: bool = False


def _rollout_step(state: _State, said: Answers, late: bool) -> _Step | None:
    """Fewer rollout workers: in one step, as soon as enough pods are free.

    Released pods go before pods that have not started, since the runtime does not use the former again.
    """
    living = sorted((pod for pod in state.unlisted if alive(pod)), key=_least_loss)
    return _smaller(
        state,
        [pod for pod in living if pod.name in said.released],
        [pod for pod in living if pod.name not in said.released and _unstarted(pod)],
        [pod for pod in living if pod.name not in said.released and not _unstarted(pod)],
        late,
    )


def _trainer_step(state: _State, said: Answers, late: bool, refused: bool) -> _Step | None:
    """Another number of trainer workers: as soon as the trainer stands still for it, or none has started.

    Pods that have not started hold no rank: where they are enough, nobody need stand still for fewer. What
    was refused before is tried while the trainer goes on, where that loses no rank: with more workers.
    """
    stopped = said.trainer_stopped_for == state.desired
    if state.desired > state.replicas:
        idle = all(_unstarted(pod) for pod in state.pods)
        free = stopped or idle or refused
        return _Step(state.desired, timed_out=not free) if free or late else None
    living = sorted((pod for pod in state.unlisted if alive(pod)), key=_least_loss)
    if stopped:
        return _smaller(state, living, [], [], late)
    unstarted = [pod for pod in living if _unstarted(pod)]
    return _smaller(state, [], unstarted, [pod for pod in living if not _unstarted(pod)], late)


def _smaller(
    state: _State, released: list[Pod], unstarted: list[Pod], others: list[Pod], late: bool
) -> _Step | None:
    """The step to fewer workers: it takes released pods, then unstarted ones and, when it is late, others.

    While pods are missing, KubeRay is about to make them, and those cost least: only what is late does not
    wait for them.
    """
    counted, surplus = len(state.unlisted), state.replicas - state.desired
    free = [*released, *unstarted]
    if counted == state.replicas and len(free) >= surplus:
        waiting = unstarted[: max(surplus - len(released), 0)]
        return _Step(state.desired, tuple(free[:surplus]), frozenset(pod.name for pod in waiting))
    if not late:
        return None
    taken = [*free, *others][: max(counted - state.desired, 0)]
    # Not below what is left: KubeRay would choose which of the rest goes.
    replicas = max(state.desired, counted - len(taken))
    # Pods that are ending on their own still count, and too few others can be taken.
    if replicas >= state.replicas:
        return None
    return _Step(replicas, tuple(taken), timed_out=len(taken) > len(free))


def _carried_out(state: _State, entry: ScaleDown, step: _Step) -> Resize:
    names = (*state.leaving, *(pod.name for pod in step.victims))
    patch = replace(
        state.patch(step.replicas, names if step.victims else state.listed),
        victims_must_live=tuple((pod.name, pod.uid) for pod in step.victims),
        must_not_run=step.must_not_run,
    )
    update = {
        "victims": sorted(patch.workers_to_delete),
        "timed_out": entry.timed_out or step.timed_out,
    }
    return Resize(entry.model_copy(update=update), patch)


def refusal(action: ScaleGroup, pods: Iterable[Pod]) -> str | None:
    """Why the patch must not be made, given the group's pods as they are at this moment; None: it may.

    Whatever it finds is no error: the plan was made from what has changed since.
    """
    by_name = {pod.name: pod for pod in pods}
    for name, uid in action.victims_must_live:
        pod = by_name.get(name)
        if pod is None or pod.uid != uid or not alive(pod):
            return f"pod {name} is gone already, and may have been replaced"
        if name in action.must_not_run and not _unstarted(pod):
            return f"pod {name} has started meanwhile"
    for name in action.must_be_gone:
        if name in by_name:
            return f"pod {name} still exists"
    unlisted = sum(name not in action.workers_to_delete for name in by_name)
    if action.replicas < action.seen_replicas and unlisted > action.replicas:
        return f"{unlisted} pods would be left, not {action.replicas}"
    if unlisted < action.unlisted_at_least:
        return f"there are {unlisted} pods by now, not {action.unlisted_at_least}"
    return None


def _unstarted(pod: Pod) -> bool:
    """Whether Ray has not started in the pod: it is not part of the Ray cluster and holds no work."""
    return pod.phase == "Pending" and alive(pod)


def _least_loss(pod: Pod) -> tuple[bool, float, str]:
    """Sort key of the pods that go first: those that are not ready, then the youngest, which have done the
    least work."""
    return (pod.ready, -pod.created.timestamp(), pod.name)
