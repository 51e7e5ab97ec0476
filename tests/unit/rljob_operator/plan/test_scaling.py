"""The protocol that resizes a worker group, step by step."""

from dataclasses import replace

import pytest

from rljob_api.status import ScaleDown
from rljob_operator.plan.observed import Group
from rljob_operator.plan.plan import ScaleGroup
from rljob_operator.plan.scaling import Answers, answers, refusal, resize
from tests.support.operator.observations import at, cluster, pod, said, waiting_pod

GRACE = 300
FAST, TRAINER = "fastRollout", "trainer"


def name(number, pool=FAST):
    return f"math-1-{'trainer' if pool == TRAINER else 'fast-rollout'}-{number}"


def workers(*numbers, pool=FAST, **fields):
    return tuple(pod(pool, number, **fields) for number in numbers)


def step(
    wish, replicas, pods, names=(), entry=None, released=(), stopped_for=None, seconds=0, pool=FAST,
    again=None,
):  # fmt: skip
    """One step of a group; names of pods are given by their numbers. `again`: when a patch that was refused
    is tried again, in seconds."""
    return resize(
        cluster=cluster(),
        group=Group(pool, replicas, tuple(name(number, pool) for number in names)),
        pods=pods,
        desired=wish,
        entry=entry,
        said=Answers(frozenset(name(number, pool) for number in released), stopped_for),
        grace=GRACE,
        now=at(seconds),
        refused=None if again is None else at(again),
    )


def patched(resized):
    """The patch in short: replicas, and the numbers of the pods that are named."""
    action = resized.action
    return (
        None
        if action is None
        else (action.replicas, [int(n.split("-")[-1]) for n in action.workers_to_delete])
    )


FOUR = workers(0, 1, 2, 3)
STUCK = replace(pod(FAST, 3), deleting=at(30))
DEAD = replace(pod(FAST, 3), phase="Failed", ready=False)
PENDING = waiting_pod(FAST, 3)

ROLLOUT_STEPS = {
    # what: (arguments, patch: (replicas, pods named) or None)
    "nothing to do": ((4, 4, FOUR), {}, None),
    "raised: at once": ((6, 4, FOUR), {}, (6, [])),
    "raised while a pod leaves: its name stays": ((6, 3, FOUR), {"names": [3]}, (6, [3])),
    "lowered: the runtime has not answered": ((2, 4, FOUR), {}, None),
    "lowered: one of two is released": ((2, 4, FOUR), {"released": [1]}, None),
    "lowered: both are released": ((2, 4, FOUR), {"released": [1, 2]}, (2, [2, 1])),
    "lowered: more are released than go": ((3, 4, FOUR), {"released": [1, 2]}, (3, [2])),
    "lowered: a pod that never started is free": ((3, 4, (*FOUR[:3], PENDING)), {}, (3, [3])),
    "lowered: released go first": ((3, 4, (*FOUR[:3], PENDING)), {"released": [0]}, (3, [0])),
    "lowered: a dead pod is no victim": ((3, 4, (*FOUR[:3], DEAD)), {"released": [3]}, None),
    "lowered: a pod being deleted is no victim": ((3, 4, (*FOUR[:3], STUCK)), {"released": [3]}, None),
    "lowered: KubeRay is about to make a pod": ((2, 4, FOUR[:3]), {"released": [1, 2]}, None),
    "lowered further while a pod leaves": ((2, 3, FOUR), {"names": [3], "released": [2]}, (2, [3, 2])),
    "late: any pods go, the youngest first": ((2, 4, FOUR), {"seconds": GRACE}, (2, [3, 2])),
    "late: released ones first": ((2, 4, FOUR), {"seconds": GRACE, "released": [0]}, (2, [0, 3])),
    "late: pods that are missing need no victim": ((3, 4, FOUR[:3]), {"seconds": GRACE}, (3, [])),
    "late: dead pods are left out, and counted": (
        (2, 4, (*FOUR[:3], DEAD)),
        {"seconds": GRACE},
        (2, [2, 1]),
    ),
    "late: nobody can be named": ((0, 1, (STUCK,)), {"seconds": GRACE}, None),
    "a pod terminates": ((4, 4, (*FOUR[:3], STUCK)), {"seconds": 59}, None),
    "a pod does not go: it is named, and replaced": ((4, 4, (*FOUR[:3], STUCK)), {"seconds": 60}, (4, [3])),
    "it is named already": ((4, 4, (*FOUR[:3], STUCK)), {"names": [3], "seconds": 90}, None),
    "another one does not go": (
        (4, 4, (*FOUR[:2], replace(pod(FAST, 2), deleting=at(40)), STUCK)),
        {"names": [3], "seconds": 90},
        (4, [3, 2]),
    ),
    "a pod leaves: its name stays": ((3, 3, FOUR), {"names": [3]}, None),
    "one of two is gone: both names stay": ((2, 2, FOUR[:3]), {"names": [2, 3]}, None),
    "all are gone: the list is cleared": ((3, 3, FOUR[:3]), {"names": [3]}, (3, [])),
    "gone, and wished back: raised first": ((4, 3, FOUR[:3]), {"names": [3]}, (4, [3])),
    "a victim was replaced: raised back": ((3, 3, (*FOUR[:3], pod(FAST, 9))), {"names": [3]}, (4, [3])),
    "raised back, then drained anew": ((3, 4, (*FOUR[:3], pod(FAST, 9))), {"names": [3]}, (4, [])),
    "late: a name is cleared by a patch of its own": (
        (3, 4, FOUR[:3]),
        {"seconds": GRACE, "names": [9]},
        (3, [9]),
    ),
}


@pytest.mark.parametrize(("positional", "named", "expected"), ROLLOUT_STEPS.values(), ids=ROLLOUT_STEPS)
def test_a_rollout_pools_next_step(positional, named, expected):
    entry = ScaleDown(pool=FAST, replicas=positional[0], asked_time="2026-11-21T14:02:00Z")
    assert patched(step(*positional, entry=entry, **named)) == expected


THREE = workers(0, 1, 2, pool=TRAINER)
TRAINER_STEPS = {
    "nothing to do": ((3, 3, THREE), {}, None),
    "more: the trainer has not stopped": ((4, 3, THREE), {}, None),
    "more: it has stopped": ((4, 3, THREE), {"stopped_for": 4}, (4, [])),
    "more: it has stopped for another number": ((4, 3, THREE), {"stopped_for": 2}, None),
    "fewer: it has not stopped": ((2, 3, THREE), {}, None),
    "fewer: it has stopped": ((2, 3, THREE), {"stopped_for": 2}, (2, [2])),
    "fewer: it has stopped, but a pod is missing": ((1, 3, THREE[:2]), {"stopped_for": 1}, None),
    "fewer: none has started": (
        (1, 2, (waiting_pod(TRAINER, 0), waiting_pod(TRAINER, 1))),
        {},
        (1, [1]),
    ),
    "fewer: the one that goes has not started": (
        (1, 2, (pod(TRAINER, 0), waiting_pod(TRAINER, 1))),
        {},
        (1, [1]),
    ),
    "fewer: one of two that go has not started": (
        (1, 3, (*THREE[:2], waiting_pod(TRAINER, 2))),
        {},
        None,
    ),
    "fewer, stopped: one that is not ready goes first": (
        (1, 2, (pod(TRAINER, 0, ready=False), pod(TRAINER, 1))),
        {"stopped_for": 1},
        (1, [0]),
    ),
    "more, late": ((4, 3, THREE), {"seconds": GRACE}, (4, [])),
    "fewer, stopped, but a pod is missing, late": (
        (1, 3, THREE[:2]),
        {"stopped_for": 1, "seconds": GRACE},
        (1, [1]),
    ),
    "fewer, late": ((2, 3, THREE), {"seconds": GRACE}, (2, [2])),
    "a victim was replaced: raised back": ((2, 2, THREE), {"names": [9]}, (3, [9])),
}


@pytest.mark.parametrize(("positional", "named", "expected"), TRAINER_STEPS.values(), ids=TRAINER_STEPS)
def test_the_trainers_next_step(positional, named, expected):
    entry = ScaleDown(pool=TRAINER, replicas=positional[0], asked_time="2026-11-21T14:02:00Z")
    assert patched(step(*positional, entry=entry, pool=TRAINER, **named)) == expected


REFUSED = {
    # what: (arguments, patch, the entry's victims, whether it is marked)
    "more: tried again in a while": ((4, 3, THREE), {"stopped_for": 4, "again": 30}, None, []),
    "more: tried again, whether the trainer stands still or not": ((4, 3, THREE), {"again": 0}, (4, []), []),
    "fewer: tried again in a while, and nothing leaves": (
        (2, 3, THREE),
        {"stopped_for": 2, "again": 30},
        None,
        [],
    ),
    "fewer: the trainer goes on until it is late": ((2, 3, THREE), {"again": 0}, None, []),
    "fewer, late: not before its time": ((2, 3, THREE), {"again": GRACE + 9, "seconds": GRACE}, None, []),
    "fewer, late: tried again": ((2, 3, THREE), {"again": GRACE, "seconds": GRACE}, (2, [2]), [2]),
}


@pytest.mark.parametrize(("positional", "named", "patch", "victims"), REFUSED.values(), ids=REFUSED)
def test_a_trainer_whose_patch_is_refused(positional, named, patch, victims):
    entry = _asked(positional[0], TRAINER).model_copy(update={"victims": [name(2, TRAINER)]})
    found = step(*positional, entry=entry, pool=TRAINER, **named)
    assert patched(found) == patch and found.entry.refused
    assert found.entry.victims == [name(number, TRAINER) for number in victims]
    assert found.entry.timed_out == (victims != [])
    accepted = {key: value for key, value in named.items() if key != "again"}
    assert not step(*positional, entry=found.entry, pool=TRAINER, **accepted).entry.refused


def test_a_trainer_that_has_its_size_is_not_refused_one():
    """What is refused is to clear the names of pods that are gone."""
    found = step(2, 2, THREE[:2], names=[2], entry=_asked(2, TRAINER), pool=TRAINER, again=30)
    assert not found.entry.refused


def test_a_wish_is_on_record_from_its_first_sight_to_the_last_pods_end():
    asked = step(2, 4, FOUR, seconds=10)
    assert asked.entry == ScaleDown(pool=FAST, replicas=2, asked_time="2026-11-21T14:02:10Z")
    assert asked.wake == at(10 + GRACE)
    still = step(2, 4, FOUR, entry=asked.entry, seconds=20)
    assert still.entry == asked.entry and still.wake == asked.wake
    chosen = step(2, 4, FOUR, entry=still.entry, released=[1, 2], seconds=30)
    assert chosen.entry.victims == [name(1), name(2)] and chosen.entry.asked_time == asked.entry.asked_time
    leaving = step(2, 2, FOUR, names=[2, 1], entry=chosen.entry, released=[1, 2], seconds=40)
    assert leaving.entry == chosen.entry and leaving.action is None and leaving.wake is None
    gone = step(2, 2, workers(0, 3), names=[2, 1], entry=chosen.entry, seconds=50)
    assert gone.entry == chosen.entry and gone.action.must_be_gone == (name(2), name(1))
    assert step(2, 2, workers(0, 3), entry=chosen.entry, seconds=60).entry is None


@pytest.mark.parametrize("pool", [FAST, TRAINER])
def test_a_pod_that_does_not_go_is_replaced_without_anybody_waiting_for_it(pool):
    stuck = replace(pod(pool, 1), deleting=at(30))
    pods = (pod(pool, 0), stuck)
    waits = step(2, 2, pods, seconds=50, pool=pool)
    assert (waits.entry, waits.action, waits.wake) == (None, None, at(60))
    named = step(2, 2, pods, seconds=60, pool=pool)
    assert named.entry is None and patched(named) == (2, [1])
    assert refusal(named.action, pods) is None
    replaced = step(2, 2, (*pods, pod(pool, 7)), names=[1], seconds=70, pool=pool)
    assert (replaced.entry, replaced.action) == (None, None)
    gone = step(2, 2, (pod(pool, 0), pod(pool, 7)), names=[1], seconds=900, pool=pool)
    assert gone.entry is None and patched(gone) == (2, [])


def test_another_wish_gets_its_own_time():
    first = step(2, 4, FOUR, seconds=10)
    second = step(3, 4, FOUR, entry=first.entry, seconds=100)
    assert second.entry.asked_time == "2026-11-21T14:03:40Z"


def test_victims_that_could_not_be_taken_are_off_the_record_again():
    entry = ScaleDown(pool=FAST, replicas=3, victims=[name(1)], asked_time="2026-11-21T14:02:00Z")
    assert step(3, 4, FOUR, entry=entry).entry.victims == []
    assert step(4, 4, FOUR, entry=entry).entry is None


@pytest.mark.parametrize(
    ("released", "timed_out"), [([1, 2], False), ([1], True), ([], True)], ids=["all", "some", "none"]
)
def test_pods_that_go_without_an_answer_are_marked(released, timed_out):
    entry = ScaleDown(pool=FAST, replicas=2, asked_time="2026-11-21T14:02:00Z")
    assert step(2, 4, FOUR, entry=entry, released=released, seconds=GRACE).entry.timed_out is timed_out


def group_patch(**fields):
    known = {"cluster": "math-1", "cluster_uid": "cluster-1", "pool": FAST}
    return ScaleGroup(**{**known, **fields})


PATCHES = {
    "raised": (
        (6, 3, FOUR),
        {"names": [3]},
        group_patch(
            seen_replicas=3, seen_workers_to_delete=(name(3),), replicas=6, workers_to_delete=(name(3),)
        ),
    ),
    "lowered by released pods": (
        (2, 4, FOUR),
        {"released": [1, 2]},
        group_patch(
            seen_replicas=4,
            seen_workers_to_delete=(),
            replicas=2,
            workers_to_delete=(name(2), name(1)),
            victims_must_live=((name(2), f"uid-{name(2)}"), (name(1), f"uid-{name(1)}")),
        ),
    ),
    "lowered by a released pod and one that has not started": (
        (2, 4, (*FOUR[:3], PENDING)),
        {"released": [0]},
        group_patch(
            seen_replicas=4,
            seen_workers_to_delete=(),
            replicas=2,
            workers_to_delete=(name(0), name(3)),
            victims_must_live=((name(0), f"uid-{name(0)}"), (name(3), f"uid-{name(3)}")),
            must_not_run=frozenset({name(3)}),
        ),
    ),
    "lowered while a name is still on the list, and another is not needed there any more": (
        (2, 3, FOUR),
        {"names": [3, 8], "released": [2]},
        group_patch(
            seen_replicas=3,
            seen_workers_to_delete=(name(3), name(8)),
            replicas=2,
            workers_to_delete=(name(3), name(2)),
            victims_must_live=((name(2), f"uid-{name(2)}"),),
            must_be_gone=(name(8),),
        ),
    ),
    "the list is cleared": (
        (3, 3, FOUR[:3]),
        {"names": [3]},
        group_patch(
            seen_replicas=3,
            seen_workers_to_delete=(name(3),),
            replicas=3,
            workers_to_delete=(),
            must_be_gone=(name(3),),
        ),
    ),
    "raised back": (
        (3, 3, (*FOUR[:3], pod(FAST, 9))),
        {"names": [3]},
        group_patch(
            seen_replicas=3,
            seen_workers_to_delete=(name(3),),
            replicas=4,
            workers_to_delete=(name(3),),
            unlisted_at_least=4,
        ),
    ),
}


@pytest.mark.parametrize(("positional", "named", "action"), PATCHES.values(), ids=PATCHES)
def test_a_patch_says_what_it_rests_on(positional, named, action):
    assert step(*positional, **named).action == action


def test_what_is_late_is_named_without_a_wait_for_what_has_not_started():
    late = step(1, 3, (*FOUR[:2], waiting_pod(FAST, 2)), seconds=GRACE, entry=_asked(1))
    assert patched(late) == (1, [2, 1])
    assert late.action.must_not_run == frozenset()


def _asked(replicas, pool=FAST):
    return ScaleDown(pool=pool, replicas=replicas, asked_time="2026-11-21T14:02:00Z")


def test_time_alone_ends_a_wait_at_the_deadline_or_when_a_pod_should_have_gone():
    leaving = (*FOUR[:3], replace(pod(FAST, 3), deleting=at(100)))
    assert step(3, 4, leaving, entry=_asked(3), seconds=50).wake == at(130), "the pod"
    assert step(3, 4, FOUR, entry=_asked(3), seconds=50).wake == at(GRACE)
    two = (*FOUR[:2], replace(pod(FAST, 2), deleting=at(80)), replace(pod(FAST, 3), deleting=at(60)))
    assert step(4, 4, two, seconds=50).wake == at(90), "the first of two"
    assert step(3, 4, FOUR, names=[9], entry=_asked(3), seconds=50).wake == at(GRACE), "a name is cleared"
    assert step(0, 1, (DEAD,), entry=_asked(0), seconds=GRACE).wake is None, "the deadline is over"
    assert step(4, 4, FOUR, seconds=50).wake is None
    assert step(4, 4, two, names=[2, 3], seconds=50).wake is None, "both are named"


def test_a_trainer_that_was_not_stopped_in_time_is_marked():
    unstarted = (waiting_pod(TRAINER, 0), waiting_pod(TRAINER, 1))
    for pods, stopped_for, timed_out in ((THREE, None, True), (THREE, 4, False), (unstarted, None, False)):
        late = step(
            4, len(pods), pods, entry=_asked(4, TRAINER), stopped_for=stopped_for, seconds=GRACE, pool=TRAINER
        )
        assert (late.action.replicas, late.entry.timed_out) == (4, timed_out)


def test_a_wish_of_which_no_time_is_known_is_as_new():
    entry = _asked(2).model_copy(update={"asked_time": None})
    assert step(2, 4, FOUR, entry=entry, seconds=10).wake == at(10 + GRACE)


def test_pods_that_leave_by_a_patch_that_is_not_on_record_are_put_on_record():
    assert step(3, 3, FOUR, names=[3], seconds=10).entry == ScaleDown(
        pool=FAST, replicas=3, victims=[name(3)], asked_time="2026-11-21T14:02:10Z"
    )


def test_what_leaves_stays_on_record_when_a_stuck_pod_is_named():
    stuck = (*FOUR[:2], replace(pod(FAST, 2), deleting=at(40)), FOUR[3])
    named = step(4, 4, stuck, names=[3], entry=_asked(4), seconds=90)
    assert patched(named) == (4, [3, 2]) and named.entry.victims == [name(3)]


def test_only_a_victim_may_not_have_started():
    resized = step(3, 4, (*FOUR[:3], PENDING), released=[0], entry=_asked(3))
    assert patched(resized) == (3, [0]) and resized.action.must_not_run == frozenset()


def test_released_pods_that_go_late_are_not_marked():
    late = step(2, 4, FOUR[:3], released=[2], entry=_asked(2), seconds=GRACE)
    assert patched(late) == (2, [2]) and late.entry.timed_out is False


def test_a_mark_stays_while_more_go():
    entry = _asked(1).model_copy(update={"timed_out": True, "victims": [name(3)]})
    assert step(1, 2, FOUR[:3], names=[3], entry=entry, released=[1], seconds=50).entry.timed_out


ANSWERS = {
    "to this spec": (said(released=["a"], observed_generation=2), True),
    "to a later one": (said(released=["a"], observed_generation=3), True),
    "to an earlier one": (said(released=["a"], observed_generation=1), False),
    "of an earlier attempt": (said(released=["a"], observed_generation=2, attempt=0), False),
    "none": (None, False),
}


@pytest.mark.parametrize(("training", "counts"), ANSWERS.values(), ids=ANSWERS)
def test_answers_count_where_they_belong_to_the_attempt_and_the_spec(training, counts):
    assert answers(training, attempt=1, generation=2) == (Answers(frozenset({"a"})) if counts else Answers())


def test_the_trainer_says_for_how_many_workers_it_has_stopped():
    stopped = said(trainer_stopped_for=4, observed_generation=2)
    assert answers(stopped, attempt=1, generation=2) == Answers(trainer_stopped_for=4)


def test_raising_needs_no_look_at_the_pods():
    assert not step(6, 4, FOUR).action.checked
