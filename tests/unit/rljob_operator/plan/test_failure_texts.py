"""How an attempt ended, in the words that people read, and what it counts as."""

from dataclasses import replace

import pytest

from rljob_operator.plan import outdated
from rljob_operator.plan.attempt import attempt_of
from rljob_operator.plan.failure import Ending, Kind, ending
from rljob_operator.plan.observed import ContainerEnd, Helper
from tests.support.operator.observations import (
    at,
    end,
    observe,
    planned,
    pod,
    running,
    said,
    spec,
    told,
    waiting_pod,
    with_pods,
)

HEAD = "math-1-head-0"
DELETED = {"deleting": at(130), "deletion_grace": 30}
"""Deleted 100 s after the job's creation."""
NODE_LOST = {"disrupted": "NodeLost", "node": "gpu-3"}
GONE = "The container could not be located when the pod was terminated"

ENDS = {
    # the head's last state: (kind, reason, message)
    "done": ({"driver": end(0, "reward 0.9")}, Kind.COMPLETE, "Completed", "reward 0.9"),
    "refused": ({"driver": end(2, "no model")}, Kind.REFUSED, "InvalidConfiguration", "no model"),
    "refused without a word": ({"driver": end(2)}, Kind.REFUSED, "InvalidConfiguration", "exit code 2"),
    "failed": (
        {"driver": end(1, "boom")},
        Kind.FAILED,
        "AttemptFailed",
        "The driver ended: exit code 1: boom",
    ),
    "failed without its reward function": (
        {"driver": end(1, "no host answers"), "helper": Helper("rewards", end(137, "", "OOMKilled"))},
        Kind.FAILED,
        "AttemptFailed",
        "The driver ended: exit code 1: no host answers (container rewards had ended before: OOMKilled, "
        "exit code 137)",
    ),
    "failed before a helper": (
        {"driver": end(1, "boom"), "helper": Helper("rewards", end(137, seconds=101))},
        Kind.FAILED,
        "AttemptFailed",
        "The driver ended: exit code 1: boom",
    ),
    "failed after a helper was done": (
        {"driver": end(1, "boom"), "helper": Helper("log", end(0))},
        Kind.FAILED,
        "AttemptFailed",
        "The driver ended: exit code 1: boom",
    ),
    "crashed": (
        {"driver": end(139, "", "Segfault")},
        Kind.FAILED,
        "AttemptFailed",
        "The driver ended: Segfault, exit code 139",
    ),
    "an exit code of nobody": (
        {"driver": end(77)},
        Kind.FAILED,
        "AttemptFailed",
        "The driver ended: exit code 77",
    ),
    "stopped": (
        {"driver": end(130), **DELETED},
        Kind.DISRUPTED,
        "HeadLost",
        "The driver was stopped (deleted, node node-0).",
    ),
    "stopped, nobody says why": (
        {"driver": end(130), "node": None},
        Kind.DISRUPTED,
        "HeadLost",
        "The driver was stopped (for no reason that the pod names).",
    ),
    "failed on a lost node": (
        {"driver": end(1, "boom"), **NODE_LOST},
        Kind.DISRUPTED,
        "HeadLost",
        "The driver ended: exit code 1: boom (NodeLost, node gpu-3)",
    ),
    "failed in the moment of the deletion": (
        {"driver": end(1, seconds=100), **DELETED},
        Kind.DISRUPTED,
        "HeadLost",
        "The driver ended: exit code 1 (deleted, node node-0)",
    ),
    "Ray used up the memory": (
        {"main": end(137, "", "OOMKilled"), "driver": end(1, "boom"), **NODE_LOST},
        Kind.FAILED,
        "AttemptFailed",
        "Ray's head was killed for its memory (OOMKilled, exit code 137). "
        "The driver ended: exit code 1: boom",
    ),
    "Ray used up the memory of a pod that was being deleted": (
        {"main": end(137, "", "OOMKilled", seconds=110), **DELETED},
        Kind.FAILED,
        "AttemptFailed",
        f"Ray's head in pod {HEAD} ended: OOMKilled, exit code 137.",
    ),
    "Ray ended with the pod": (
        {"main": end(143, seconds=110), **DELETED},
        Kind.DISRUPTED,
        "HeadLost",
        f"Ray's head in pod {HEAD} ended: exit code 143 (deleted, node node-0).",
    ),
    "what Ray says while it is told to end": (
        {"main": end(137, "Raylet is terminated.\nParent process 7 died. Exiting", seconds=110), **DELETED},
        Kind.DISRUPTED,
        "HeadLost",
        f"Ray's head in pod {HEAD} ended: exit code 137 (deleted, node node-0).",
    ),
    "a driver that says it after Ray": (
        {
            "driver": end(137, "stopped: 15 steps\nParent process 7 died. Exiting", seconds=110),
            **DELETED,
        },
        Kind.DISRUPTED,
        "HeadLost",
        "The driver ended: exit code 137: stopped: 15 steps (deleted, node node-0)",
    ),
    "the pod failed with its node": (
        {"phase": "Failed", **NODE_LOST},
        Kind.DISRUPTED,
        "HeadLost",
        f"Head pod {HEAD} ended: NodeLost, node gpu-3.",
    ),
    "the kubelet did not let it begin": (
        {"phase": "Failed", "disrupted": "OutOfcpu", "node": "cpu-1", "eviction": "Node has no cpu. "},
        Kind.DISRUPTED,
        "HeadLost",
        f"Head pod {HEAD} ended: OutOfcpu, node cpu-1: Node has no cpu.",
    ),
    "its node started again": (
        {
            "driver": end(255, "", "Unknown"),
            "main": end(255, "", "Unknown"),
            "phase": "Failed",
            "node": "cpu-1",
        },
        Kind.DISRUPTED,
        "HeadLost",
        "The driver ended: Unknown, exit code 255 (as when its node starts again, node cpu-1)",
    ),
    "Ray's container was lost from the node": (
        {"main": end(137, GONE, "ContainerStatusUnknown"), "node": "cpu-1"},
        Kind.DISRUPTED,
        "HeadLost",
        f"Ray's head in pod {HEAD} ended: ContainerStatusUnknown, exit code 137 "
        "(as when its node starts again, node cpu-1).",
    ),
    "done before its node started again": (
        {"driver": end(0, "reward 0.9"), "main": end(255, "", "Unknown")},
        Kind.COMPLETE,
        "Completed",
        "reward 0.9",
    ),
    "failed before its node started again": (
        {"driver": end(1, "boom"), "main": end(255, "", "Unknown", seconds=110)},
        Kind.FAILED,
        "AttemptFailed",
        "The driver ended: exit code 1: boom",
    ),
    "Ray failed before its node started again": (
        {"driver": end(255, "", "Unknown", seconds=110), "main": end(1, "", "Error")},
        Kind.FAILED,
        "AttemptFailed",
        f"Ray's head in pod {HEAD} ended: exit code 1. The driver ended: Unknown, exit code 255",
    ),
    "the pod failed while it was deleted": (
        {"phase": "Failed", **DELETED},
        Kind.DISRUPTED,
        "HeadLost",
        f"Head pod {HEAD} ended: deleted, node node-0.",
    ),
    "the pod failed": ({"phase": "Failed"}, Kind.FAILED, "AttemptFailed", f"Head pod {HEAD} ended."),
    "the pod succeeded": ({"phase": "Succeeded"}, Kind.FAILED, "AttemptFailed", f"Head pod {HEAD} ended."),
}


@pytest.mark.parametrize(("fields", "kind", "reason", "message"), ENDS.values(), ids=ENDS)
@pytest.mark.parametrize("gone", [False, True], ids=["still there", "gone, but remembered"])
def test_how_the_head_ended(fields, kind, reason, message, gone):
    head = replace(pod("head"), ready=False, **fields)
    observed = with_pods(running(), head)
    if gone:
        observed = replace(with_pods(running(), without=(HEAD,)), lost_heads=(head,))
    assert ending(attempt_of(observed), at(120)) == Ending(kind, reason, message)


def test_a_container_that_ended_without_a_word_has_its_exit_code():
    head = replace(pod("head"), driver=ContainerEnd(1, "", "", at(100)))
    assert ending(attempt_of(with_pods(running(), head)), at(120)).message == "The driver ended: exit code 1"


def test_a_job_that_is_done_has_no_words_of_a_head_that_ended_otherwise():
    done = running(training=said(step=10, completed=True))
    head = replace(pod("head"), driver=end(1, "boom"))
    for observed in (with_pods(done, head), with_pods(done, without=(HEAD,))):
        assert ending(attempt_of(observed), at(120)) == Ending(Kind.COMPLETE, "Completed", "")


def test_a_head_that_is_gone():
    observed = with_pods(running(), without=(HEAD,))
    assert ending(attempt_of(observed), at(120)) == Ending(
        Kind.DISRUPTED, "HeadLost", "The head pod of RayCluster math-1 is gone."
    )
    deleted = replace(observed, lost_heads=(replace(pod("head"), **DELETED),))
    assert ending(attempt_of(deleted), at(120)) == Ending(
        Kind.DISRUPTED, "HeadLost", f"Head pod {HEAD} is gone: deleted, node node-0."
    )


def test_a_head_that_should_have_gone():
    observed = with_pods(running(), replace(pod("head"), **DELETED))
    assert ending(attempt_of(observed), at(160)) == Ending(
        Kind.DISRUPTED, "HeadLost", f"Head pod {HEAD} is lost: deleted, node node-0."
    )


TAKEN = replace(pod("trainer"), disrupted="PreemptionByScheduler", ready=False)
TRAINER_TAKEN = "(trainer pod math-1-trainer-0 was taken by the cluster)"


@pytest.mark.parametrize(
    ("code", "kind", "message"),
    [
        (1, Kind.DISRUPTED, f"The driver ended: exit code 1 {TRAINER_TAKEN}"),
        (139, Kind.FAILED, "The driver ended: exit code 139"),
    ],
    ids=["the driver gives up", "the driver crashes"],
)
def test_a_trainer_that_the_cluster_took_excuses_a_driver_that_gives_up_alone(code, kind, message):
    observed = with_pods(running(), replace(pod("head"), driver=end(code)), TAKEN)
    assert ending(attempt_of(observed), at(120)) == Ending(kind, "AttemptFailed", message)


@pytest.mark.parametrize(
    ("taken", "kind"),
    [
        (TAKEN, Kind.DISRUPTED),
        (replace(TAKEN, cluster_uid="an earlier one's"), Kind.FAILED),
        (replace(TAKEN, attempt=2), Kind.FAILED),
    ],
    ids=["of this attempt", "of another RayCluster", "of another attempt"],
)
def test_a_trainer_that_was_taken_excuses_the_driver_also_once_it_is_replaced(taken, kind):
    gives_up = with_pods(running(), replace(pod("head"), driver=end(1)))
    found = ending(attempt_of(replace(gives_up, taken_trainers=(taken,))), at(120))
    assert (found.kind, TRAINER_TAKEN in found.message) == (kind, kind is Kind.DISRUPTED)


@pytest.mark.parametrize("reason", ["Unknown", "ContainerStatusUnknown"])
def test_a_trainer_whose_node_started_again_was_taken_by_the_cluster(reason):
    lost = replace(pod("trainer"), phase="Failed", main=end(255, "", reason), ready=False)
    observed = with_pods(running(), replace(pod("head"), driver=end(1)), lost)
    assert ending(attempt_of(observed), at(120)) == Ending(
        Kind.DISRUPTED, "AttemptFailed", f"The driver ended: exit code 1 {TRAINER_TAKEN}"
    )


def test_a_trainer_that_the_kubelet_evicted_excuses_nobody():
    evicted = replace(TAKEN, disrupted="Evicted")
    observed = with_pods(running(), replace(pod("head"), driver=end(1)), evicted)
    assert ending(attempt_of(observed), at(120)).kind is Kind.FAILED


def test_a_changed_spec_ends_an_attempt_that_has_not_started():
    observed = running()
    status = observed.job.status
    starting = attempt_of(with_pods(observed, waiting_pod("head")))
    assert outdated.ending(status.model_copy(update={"conditions": []}), starting, at(60)) == Ending(
        Kind.DISRUPTED,
        "SpecOutdated",
        "The spec was changed before the driver of attempt 1 had started.",
    )
    assert outdated.ending(status, starting, at(60)) is None, "it was running before"
    assert outdated.ending(status, attempt_of(observed), at(60)) is None


def test_a_head_that_starts_again_does_not_make_a_change_end_what_ran():
    observed = with_pods(running(), waiting_pod("head"))
    changed = observe(observed, planned(observed, 61), spec=spec({"training.optimizer.learningRate": 0.5}))
    plan = planned(changed, 100)
    assert (plan.status.phase, told(plan)) == ("Running", ["SpecOutdated"])
