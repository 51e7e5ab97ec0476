"""Whether a patch of a worker group may still be made, seen with its pods as they are at that moment."""

from dataclasses import replace

import pytest

from rljob_operator.plan.plan import ScaleGroup
from rljob_operator.plan.scaling import refusal
from tests.support.operator.observations import at, end, pod, waiting_pod

FAST = "fastRollout"
A, B, C = pod(FAST, 0), pod(FAST, 1), pod(FAST, 2)
PENDING = waiting_pod(FAST, 2)


def patch(seen: int, replicas: int, **fields) -> ScaleGroup:
    known = {
        "cluster": "math-1", "cluster_uid": "cluster-1", "pool": FAST, "seen_replicas": seen,
        "seen_workers_to_delete": (), "replicas": replicas, "workers_to_delete": (),
    }  # fmt: skip
    return ScaleGroup(**{**known, **fields})


def naming(*victims, **fields) -> ScaleGroup:
    """Three workers become fewer, by these victims."""
    return patch(
        3,
        3 - len(victims),
        workers_to_delete=tuple(victim.name for victim in victims),
        victims_must_live=tuple((victim.name, victim.uid) for victim in victims),
        **fields,
    )


GONE = "is gone already, and may have been replaced"
CASES = {
    "nothing has changed": (naming(C), [A, B, C], None),
    "two victims": (naming(B, C), [A, B, C], None),
    "the victim is gone": (naming(C), [A, B], f"pod {C.name} {GONE}"),
    "one of two victims is gone": (naming(B, C), [A, B], f"pod {C.name} {GONE}"),
    "another pod has its name": (naming(C), [A, B, replace(C, uid="other")], f"pod {C.name} {GONE}"),
    "the victim is being deleted": (naming(C), [A, B, replace(C, deleting=at(1))], f"pod {C.name} {GONE}"),
    "the victim has ended": (
        naming(C),
        [A, B, replace(C, phase="Failed", main=end(1))],
        f"pod {C.name} {GONE}",
    ),
    "the victim has still not started": (naming(C, must_not_run=frozenset({C.name})), [A, B, PENDING], None),
    "the victim has started": (
        naming(C, must_not_run=frozenset({C.name})),
        [A, B, C],
        f"pod {C.name} has started meanwhile",
    ),
    "a victim that may run has started": (
        naming(B, C, must_not_run=frozenset({C.name})),
        [A, B, PENDING],
        None,
    ),
    "there is one pod more": (naming(C), [A, B, C, pod(FAST, 3)], "3 pods would be left, not 2"),
    "there is one pod less": (naming(C), [A, C], None),
    "a name leaves the list, its pod is gone": (patch(2, 2, must_be_gone=(C.name,)), [A, B], None),
    "a name leaves the list, its pod is there": (
        patch(2, 2, must_be_gone=(C.name,)),
        [A, B, C],
        f"pod {C.name} still exists",
    ),
    "more replicas never choose a victim": (patch(2, 3), [A, B, C, pod(FAST, 3)], None),
    "as many replicas never choose one either": (patch(2, 2), [A, B, C], None),
    "raised for pods that are there": (patch(2, 3, unlisted_at_least=3), [A, B, C], None),
    "raised for pods that went meanwhile": (
        patch(2, 3, unlisted_at_least=3),
        [A, B],
        "there are 2 pods by now, not 3",
    ),
    "pods on the list do not count": (
        patch(2, 3, workers_to_delete=(C.name,), unlisted_at_least=3),
        [A, B, C],
        "there are 2 pods by now, not 3",
    ),
}


@pytest.mark.parametrize(("action", "pods", "why"), CASES.values(), ids=CASES)
def test_a_patch_is_refused_where_it_would_do_something_else_by_now(action, pods, why):
    assert refusal(action, pods) == why


@pytest.mark.parametrize(
    ("action", "checked"),
    [
        (patch(2, 3), False),
        (patch(3, 2), True),
        (patch(2, 2, workers_to_delete=("a",)), True),
        (patch(2, 2, seen_workers_to_delete=("a",), workers_to_delete=("a",)), False),
        (patch(2, 3, unlisted_at_least=3), True),
    ],
    ids=["larger", "smaller", "another list", "the same list", "larger for pods that are there"],
)
def test_pods_are_read_afresh_only_for_a_patch_that_rests_on_them(action, checked):
    assert action.checked == checked


def name(number):
    return pod(FAST, number).name


FOUR = (A, B, C, pod(FAST, 3))
STUCK = replace(pod(FAST, 3), deleting=at(30))
DEAD = replace(pod(FAST, 3), phase="Failed", ready=False)
WAITING = waiting_pod(FAST, 3)


def lowering(**fields):
    known = {
        "cluster": "math-1", "cluster_uid": "c", "pool": FAST, "seen_replicas": 4,
        "seen_workers_to_delete": (), "replicas": 3, "workers_to_delete": (name(3),),
        "victims_must_live": ((name(3), f"uid-{name(3)}"),),
    }  # fmt: skip
    return ScaleGroup(**{**known, **fields})


CLEARING = lowering(
    seen_replicas=3,
    seen_workers_to_delete=(name(3),),
    workers_to_delete=(),
    victims_must_live=(),
    must_be_gone=(name(3),),
)
RAISING = lowering(
    seen_replicas=3, replicas=4, seen_workers_to_delete=(name(3),), victims_must_live=(), unlisted_at_least=4
)

CHECKS = {
    "all as it was": (lowering(), FOUR, None),
    "the victim is gone": (lowering(), FOUR[:3], "is gone already"),
    "the victim is another pod of that name": (
        lowering(),
        (*FOUR[:3], replace(FOUR[3], uid="new")),
        "is gone already",
    ),
    "the victim is being deleted": (lowering(), (*FOUR[:3], STUCK), "is gone already"),
    "the victim is dead": (lowering(), (*FOUR[:3], DEAD), "is gone already"),
    "a pod more than was seen": (lowering(), (*FOUR, pod(FAST, 9)), "4 pods would be left, not 3"),
    "a pod less than was seen": (lowering(), FOUR[1:], None),
    "it has started": (lowering(must_not_run=frozenset({name(3)})), FOUR, "has started"),
    "it has not started": (lowering(must_not_run=frozenset({name(3)})), (*FOUR[:3], WAITING), None),
    "names of pods that are gone are cleared": (CLEARING, FOUR[:3], None),
    "a pod to be cleared exists": (CLEARING, (*FOUR[:3], STUCK), "still exists"),
    "one too many: raised": (RAISING, (*FOUR[:3], pod(FAST, 9)), None),
    "no longer too many": (RAISING, FOUR[:3], "3 pods by now"),
}


@pytest.mark.parametrize(("action", "pods", "refused"), CHECKS.values(), ids=CHECKS)
def test_a_patch_is_made_only_if_the_pods_are_still_as_they_were(action, pods, refused):
    assert action.checked
    why = refusal(action, pods)
    assert why is None if refused is None else refused in why
