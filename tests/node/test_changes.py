"""What is asked of a job while it trains, and what is done to its pods: no step and no prompt is lost.

The bounds are those of docs/life-of-a-job.md: a rollout pod and the operator cost no step, trainer and head
at most the steps since the last checkpoint, and Ray's GCS as much as its head pod.
"""

import json

import pytest

from rljob_operator.plan.last_words import ONE_ENDED
from tests.support.operator.node_jobs import END_SECONDS, NodeJob, assert_every_prompt_once
from tools.cluster import Cluster
from tools.cluster.node_config import NODE_NAME
from tools.cluster.product import NAMESPACE as OPERATOR_NAMESPACE

pytestmark = pytest.mark.timeout(1500, func_only=True)

STEPS = 50
"""At the pace of a job whose test does something else, more than a test may take."""
KILL_GCS = """
import psutil
for each in psutil.process_iter(["name"]):
    if each.info["name"] == "gcs_server":
        each.kill()
"""
BOTH_POOLS = {"pools": {"fastRollout": {"replicas": 1}, "heavyRollout": {"replicas": 1}}}


def test_pools_change_and_rollout_pods_and_the_operator_are_lost(cluster: Cluster, run: NodeJob) -> None:
    run.apply(STEPS, BOTH_POOLS)
    run.wait_step(2)

    run.kubectl("scale", "rlj", run.name, "--replicas=2")
    run.wait_pods("fastRollout", 2)
    run.wait_steps_more(2)
    run.kubectl("scale", "rlj", run.name, "--replicas=1")
    run.wait_pods("fastRollout", 1)
    assert run.wait_event("ScaledUp") and run.wait_event("ScaledDown")
    run.wait_steps_more(2)

    for pool in ("fastRollout", "heavyRollout"):
        lost = run.delete_pod(pool)
        run.wait_pods(pool, 1)
        assert lost not in [pod["metadata"]["name"] for pod in run.pods(pool)]
        run.wait_steps_more(2)

    pods = json.loads(cluster.kubectl("get", "pods", "-n", OPERATOR_NAMESPACE, "-o", "json"))["items"]
    cluster.kubectl(
        *("delete", "pods", "-n", OPERATOR_NAMESPACE, "--grace-period=0", "--force"),
        *(pod["metadata"]["name"] for pod in pods),
    )
    run.patch({"pools": {"heavyRollout": {"replicas": 2}}})
    run.wait_pods("heavyRollout", 2)
    run.wait_steps_more(2)
    with run.walking():  # its engines have responses again and again meanwhile
        run.patch({"pools": {"heavyRollout": {"replicas": 1}}})
        run.wait_pods("heavyRollout", 1)

    run.hurry()
    status = run.wait_phase("Complete", END_SECONDS)["status"]
    assert "heavy-rollout 1 → 2" in run.events("ScaledUp")
    assert "heavy-rollout: 1 removed, 1 wanted" in run.events("ScaledDown")
    assert not run.events("DrainTimedOut")
    assert status["restarts"] == status["failures"] == 0
    assert_every_prompt_once(run, STEPS)


def test_the_trainer_pod_the_head_pod_and_rays_gcs_are_lost(run: NodeJob) -> None:
    run.apply(STEPS)
    run.wait_step(7)
    heads = [pod["metadata"]["uid"] for pod in run.pods("head")]
    run.delete_pod("trainer")
    run.wait_pods("trainer", 1)
    run.wait_steps_more(6)
    assert [pod["metadata"]["uid"] for pod in run.pods("head")] == heads
    assert run.wait_event("TrainerWorkerLost")

    run.delete_pod("head")
    run.wait(lambda job: job["status"]["attempt"] == 2, "the second attempt")
    run.wait(lambda job: job["status"].get("training", {}).get("attempt") == 2, "its driver")
    run.wait_steps_more(2)

    run.in_pod("head", "ray-head", "python", "-c", KILL_GCS)
    run.wait(lambda job: job["status"].get("training", {}).get("attempt") == 3, "the third attempt's driver")
    # Events of one second come in no order.
    deleted, killed = sorted(run.events("Restarting"))
    assert deleted.startswith("Attempt 1 is over.") and ONE_ENDED not in deleted, deleted
    # Which of the two depends on how much of what Ray says still fits into the container's message.
    assert killed.startswith("Attempt 2 is over.")
    assert "gcs_server was killed" in killed or ONE_ENDED in killed, killed
    assert "Traceback" not in killed and "StackTrace" not in killed
    run.wait_steps_more(2)
    run.hurry()
    status = run.wait_phase("Complete", END_SECONDS)["status"]
    assert status["restarts"] == 2 and status["failures"] == 1
    assert_every_prompt_once(run, STEPS)


def test_a_suspended_job_resumes_where_it_was_and_a_drained_node_costs_no_step(
    cluster: Cluster, run: NodeJob
) -> None:
    run.apply(STEPS)
    run.wait_step(3)
    run.patch({"suspend": True})
    with run.walking():
        suspended = run.wait_phase("Suspended")["status"]["training"]
    step = suspended["suspendedAtStep"]
    assert step == suspended["checkpoint"]["step"] == len(run.trained())
    assert not run.pods()

    run.patch({"suspend": False})
    run.wait_step(step + 2)

    drained = ["drain", NODE_NAME, f"--pod-selector=rljob.dev/job={run.name}", "--delete-emptydir-data"]
    try:
        with run.walking():  # the driver stops when its step has ended
            cluster.kubectl(*drained, "--force", "--timeout=150s", seconds=180)
        before = len(run.trained())
        assert before >= step + 2
    finally:
        cluster.kubectl("uncordon", NODE_NAME)
    run.wait(lambda job: job["status"].get("training", {}).get("attempt", 1) > 2, "the next attempt's driver")
    run.wait_steps_more(2)
    run.hurry()
    status = run.wait_phase("Complete", END_SECONDS)["status"]
    assert status["failures"] == 0
    assert_every_prompt_once(run, STEPS)
