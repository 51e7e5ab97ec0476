"""Jobs on a real node from `kubectl apply` to their end."""

import json
import re
import shutil
import time
from pathlib import Path

import pytest
import yaml

from tests.support.operator.node_jobs import CLAIM, END_SECONDS, PACE, NodeJob, assert_every_prompt_once
from tools.cluster import Cluster
from tools.cluster.api import Object
from tools.cluster.demo import EXAMPLE

pytestmark = pytest.mark.timeout(1500, func_only=True)

GONE_SECONDS = 300.0
ROUNDED = 1e-5
"""Of the status."""
SHOWN = 0.0005 + ROUNDED
"""Of the driver's log, which has three digits."""
SAMPLES, STEP_SECONDS = 256, 3.0
"""Samples of a step of the example; how long a step takes until all engines serve."""
WORKERS_TELL = {
    "trainer": "rank 0 of 1 has the model",
    "fastRollout": "engine fast-0 serves",
    "heavyRollout": "engine heavy-0 serves",
}


def test_the_example_learns_with_vllm(run: NodeJob) -> None:
    """The manifest of `make run`, but shorter, with a volume that keeps the run folder, its reward at a pace
    that the test sets: steps begin as soon as one engine serves, and must not end before both do."""
    example = yaml.safe_load(EXAMPLE.read_text())
    name = example["metadata"]["name"]
    learned = NodeJob(run.cluster, run.namespace, run.volume, name)
    example["spec"]["training"]["schedule"]["totalSteps"] = 60
    example["spec"]["training"]["reward"] = {"function": f"{PACE}:paced"}
    learned.set_pace(STEP_SECONDS / SAMPLES)
    example["spec"]["storage"] = {"volume": {"persistentVolumeClaim": {"claimName": CLAIM}}}
    learned.kubectl("apply", "-f", "-", stdin=yaml.safe_dump(example))

    learned.wait_phase("Running")
    for pool in WORKERS_TELL:
        learned.wait_pods(pool, 1)  # a job that trains is Running, though a rollout pod has yet to come

    def each_worker_tells(job: Object) -> bool:
        """Each worker's log is there. Asked with each change of the status: steps go on meanwhile."""
        logs = {pool: learned.logs(pool, "ray-worker") for pool in WORKERS_TELL}
        assert not any("kube-probe" in log for log in logs.values())
        return all(words in logs[pool] for pool, words in WORKERS_TELL.items())

    learned.wait(each_worker_tells, f"workers that log {WORKERS_TELL}")
    # What the status says is what the driver logs.
    fifth = learned.wait(lambda job: job["status"].get("training", {}).get("step", 0) >= 5, "step 5")
    told = fifth["status"]["training"]
    logged = re.findall(r"step (\d+)/60 +reward (\S+)", learned.logs("head", "driver"))
    rewards = learned.rewards()
    assert logged and told["reward"] == pytest.approx(rewards[told["step"]], abs=ROUNDED)
    for step, reward in logged:
        assert float(reward) == pytest.approx(rewards[int(step)], abs=SHOWN)
    learned.hurry()
    done = learned.wait_phase("Complete", END_SECONDS)["status"]
    assert done["training"]["progress"] == "60/60"
    assert done["restarts"] == 0
    assert done["training"]["reward"] == pytest.approx(learned.rewards()[60], abs=ROUNDED)
    assert done["training"]["reward"] > rewards[1]
    assert (learned.run_folder / "report.html").exists()
    assert (learned.run_folder / "model" / "config.json").exists()
    columns = learned.kubectl("get", "rlj", name).splitlines()[1].split()
    assert columns[1] == "Complete" and "60/60" in columns


def test_a_wrong_reward_fails_at_once_and_a_job_has_until_its_deadline(run: NodeJob) -> None:
    """Two jobs that have nothing in common: one fails while the other waits for its deadline."""
    late = NodeJob(run.cluster, run.namespace, run.volume, "late")
    late.apply(400, {"runPolicy": {"activeDeadlineSeconds": 30}})
    late.wait(lambda job: job.get("status", {}).get("phase") in ("Running", "Failed"), "a job that runs")
    # The pods wait for a head that has ended, in KubeRay's init container, which no signal ends.
    soon = {"spec": {"terminationGracePeriodSeconds": 1}}
    wait = {f"pools.{pool}.template": soon for pool in ("trainer", "fastRollout")}
    run.apply(4, {"training.reward": {"function": "pace:mistyped"}, **wait})

    def why(job: NodeJob) -> Object:
        failed = job.wait_phase("Failed")
        assert failed["status"]["restarts"] == 0
        [found] = [each for each in failed["status"]["conditions"] if each["type"] == "Failed"]
        return found

    mistyped = why(run)
    assert mistyped["reason"] == "InvalidConfiguration"
    assert "pace" in mistyped["message"] and "mistyped" in mistyped["message"]
    assert why(late)["reason"] == "DeadlineExceeded"
    path = f"/api/v1/namespaces/{run.namespace}/pods"
    run.cluster.wait(path, lambda pods: not pods, "no pods")


def test_two_jobs_at_once_and_one_is_deleted(cluster: Cluster, run: NodeJob) -> None:
    """The other's reward function takes what it can get: nothing."""
    steps = 50
    other = NodeJob(cluster, run.namespace, run.volume, "other")
    shutil.copy(Path(__file__).with_name("reward_spy.py"), run.volume)
    run.apply(steps)
    other.apply(
        400, {"training.reward": {"function": "reward_spy:spies", "workers": 1, "timeoutSeconds": 60}}
    )
    for each in (run, other):
        each.wait_step(2)
        each.wait_phase("Running")  # which is told a moment later, when the pods' probes have passed
    assert run.get()["status"]["phase"] == "Running"
    found = json.loads((other.run_folder / "rewards.log").read_text().splitlines()[0])
    assert found["drivers"] and found["user"] != 1000  # it saw the driver's process, and is another user
    assert found["got"] == [], found

    other.kubectl("delete", "rlj", other.name, "--wait=false")
    deadline = time.monotonic() + GONE_SECONDS
    left = "pods,services,secrets,rayclusters,serviceaccounts,roles,rolebindings,networkpolicies,leases"

    def there() -> str:
        labelled = other.kubectl("get", f"{left},rlj", "-l", f"rljob.dev/job={other.name}", "-o", "name")
        named = re.findall(r"\S+/other\b\S*", other.kubectl("get", left, "-o", "name"))
        return "\n".join([*labelled.splitlines(), *named])

    while found := there():
        assert time.monotonic() < deadline, f"left after {GONE_SECONDS:.0f} s: {found}"
        time.sleep(1)

    run.hurry()
    run.wait_phase("Complete", END_SECONDS)
    assert_every_prompt_once(run, steps)
