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
