"""The life of an RLJob on a real API server with the real KubeRay: one operator for all tests of the file."""

from datetime import UTC, datetime

import pytest

from tests.support.operator.obstacles import dead_webhook, quota_none
from tests.support.operator.operator_site import SHARED, JobClient, condition, running_operator


@pytest.fixture(scope="module")
def operator(cluster, tmp_path_factory):
    cluster.start_kuberay()
    with running_operator(cluster, tmp_path_factory.mktemp("operator"), None) as started:
        yield started


@pytest.fixture
def client(cluster, namespace, operator):
    client = JobClient(cluster, namespace)
    written = operator.process.log.stat().st_size
    yield client
    operator.process.check()
    print(operator.process.log.read_bytes()[written:].decode(errors="replace"))


@pytest.fixture
def running(client):
    """A job that runs: one trainer, two fast rollout workers."""
    client.create({"pools.fastRollout.replicas": 2, "runPolicy": {"suspendGraceSeconds": 120}})
    client.wait_phase("Running")
    return client


def starts_without(job, attempt, lacks):
    """Whether this attempt starts, and what it waits for begins with `lacks`."""
    status = job.get("status", {})
    starts = (status.get("phase"), status.get("attempt")) == ("Starting", attempt)
    return starts and condition(job, "PodsReady")["message"].startswith(lacks)


def runs_since(job, attempt):
    """Whether this attempt runs, or a later one."""
    status = job.get("status", {})
    return status.get("phase") == "Running" and status["attempt"] >= attempt


class TestStart:
    def test_a_job_runs_and_says_so(self, running):
        pools = [
            {"name": "trainer", "busyPercent": 88},
            {"name": "fastRollout", "busyPercent": 93, "running": 12},
        ]
        load = {"windowSeconds": 60, "pools": pools, "waiting": 4, "summary": "88/93/-"}
        evaluation = {
            "step": 2,
            "version": 2,
            "sets": [{"name": "held_out", "mean": 0.25}],
            "summary": "0.25",
        }
        now = datetime.now(UTC).isoformat(timespec="seconds")
        running.report(reward=0.5, load=load, evaluation=evaluation, time=now)
        running.wait(lambda job: job["status"].get("training"), "training")
        seen = running.columns()
        assert all(seen.pop(title).endswith(("s", "m")) for title in ("AGE", "REPORTED"))
        assert seen == {
            "NAME": "test",
            "PHASE": "Running",
            "TRAINER": "1/1",
            "FAST": "2/2",
            "HEAVY": "0/0",
            "BUSY": "88/93/-",
            "STEP": "3/4",
            "REWARD": "0.5",
            "EVALUATION": "0.25",
            "RESTARTS": "0",
        }
        job = running.get()
        assert "finalizers" not in job["metadata"] and "annotations" not in job["metadata"]
        assert condition(job, "PodsReady")["status"] == condition(job, "Accepted")["status"] == "True"
        assert running.wait_event("CreatedRayCluster") == "Created RayCluster test-1"
        assert running.wait_event("Running").startswith("All pods are ready")

    def test_the_status_has_two_owners(self, running):
        running.report()
        managers = {each["manager"]: each for each in running.get()["metadata"]["managedFields"]}
        assert "f:training" in managers["rljob-runtime"]["fieldsV1"]["f:status"]
        assert "f:training" not in managers["rljob-operator"]["fieldsV1"]["f:status"]

    def test_another_controllers_job_is_left_alone(self, client):
        client.create({"managedBy": "kueue.x-k8s.io/multikueue"})
        other = JobClient(client.cluster, client.namespace, "other")
        other.create()
        other.wait_phase("Running")  # the operator has seen the older one by now
        assert "status" not in client.get() and client.pods() == []

    def test_a_gang_that_does_not_fit_ends_at_its_start_deadline(self, client):
        large = {
            "accelerator": "nvidia",
            "pools.trainer.replicas": 50,
            "pools.trainer.acceleratorsPerWorker": 8,
            **SHARED,
        }
        lacks = "of 50 trainer pods: Insufficient nvidia.com/gpu"
        client.create({**large, "runPolicy": {"startDeadlineSeconds": 3600}})
        client.wait(lambda job: lacks in (condition(job, "PodsReady") or {}).get("message", ""), lacks)
        client.patch({"runPolicy": {"startDeadlineSeconds": 1}})
        ended = client.wait_phase("Failed")
        why = condition(ended, "Failed")
        assert why["reason"] == "StartDeadlineExceeded"
        assert lacks in why["message"]
        client.wait_pods(lambda pods: not pods, "no pods")

    def test_a_rollout_pod_that_finds_no_room_keeps_no_job_from_training(self, client):
        """Nor after a lost head: the first attempt trains, the second one waits until its start deadline."""
        nowhere = {"spec": {"nodeSelector": {"nowhere": "to-be-found"}}}
        client.create({"pools.heavyRollout.replicas": 1, "pools.heavyRollout.template": nowhere})
        lacks = "Waiting for 1 of 1 heavy-rollout pods: "
        client.wait(lambda job: starts_without(job, 1, lacks), lacks)
        client.report(reward=0.5, time=datetime.now(UTC).isoformat(timespec="seconds"))
        client.wait_phase("Running", attempt=1)
        client.wait_condition("Degraded", "True", "RolloutWorkersMissing")
        [head] = client.pods("head")
        client.delete_pod(head["metadata"]["name"], gracePeriodSeconds=0)
        client.wait(lambda job: starts_without(job, 2, lacks), lacks)
        client.patch({"runPolicy": {"startDeadlineSeconds": 1}})
        job = client.wait_phase("Running", attempt=2)
        assert condition(job, "PodsReady")["message"].startswith(lacks)
        assert condition(job, "Degraded")["reason"] == "RolloutWorkersMissing"
        assert job["status"]["failures"] == 0

    def test_pods_that_the_cluster_does_not_admit_are_told(self, client):
        """KubeRay makes the RayCluster's pods, and is refused."""
        quota = quota_none(client, "pods", "1")
        client.create()
        why = client.wait_condition("PodsReady", "False", "RayClusterRefused")
        assert "exceeded quota: none" in why["message"]
        client.cluster.api.request("DELETE", quota)
        client.wait_phase("Running", attempt=1)

    def test_a_template_that_the_api_server_refuses_is_told(self, client):
        """No schema of ours looks into templates."""
        template = {"spec": {"nodeSelecter": {"disk": "fast"}}}
        client.create({"pools.trainer.template": template})
        why = client.wait_condition("PodsReady", "False", "RayClusterRefused")
        assert why["message"].startswith("The API server refuses RayCluster test-1: ")
        assert "nodeSelecter" in why["message"] and "; start deadline " in why["message"]
        assert "nodeSelecter" in client.wait_event("RayClusterRefused")
        client.patch({"pools": {"trainer": {"template": {"spec": {"nodeSelecter": None}}}}})
        client.wait_phase("Running", attempt=1)

    def test_a_raycluster_that_the_cluster_does_not_admit_is_told_and_tried_again(self, client):
        quota = quota_none(client, "count/rayclusters.ray.io", "0")
        client.create()
        why = client.wait_condition("PodsReady", "False", "RayClusterRefused")
        assert "The API server refuses RayCluster test-1" in why["message"]
        assert "quota: none" in why["message"]
        client.cluster.api.request("DELETE", quota)
        client.wait_phase("Running", attempt=1)

    def test_a_webhook_that_does_not_answer_is_told_and_tried_again(self, client):
        with dead_webhook(client, "rayclusters"):
            client.create()
            why = client.wait_condition("PodsReady", "False", "RayClusterRefused")
            assert "The API server refuses RayCluster test-1" in why["message"]
            assert 'failed calling webhook "dead.example.com"' in why["message"]
        client.wait_phase("Running", attempt=1)

    def test_what_kuberay_refuses_is_told(self, client):
        """KubeRay's word for it is an Event about the RayCluster, which nobody reads."""
        client.cluster.stop_kuberay()
        client.create()
        client.wait_condition("PodsReady", "False", "WaitingForKubeRay")
        made = client.cluster.api.request("GET", f"{client.clusters_path}/test-1")
        containers = made["spec"]["headGroupSpec"]["template"]["spec"]["containers"]
        containers[0]["env"].append({"name": "RAY_REDIS_ADDRESS", "value": "redis:6379"})
        client.cluster.api.request("PUT", f"{client.clusters_path}/test-1", made)
        client.cluster.start_kuberay()
        why = client.wait_condition("PodsReady", "False", "RayClusterRefused")
        assert "RAY_REDIS_ADDRESS" in why["message"]
        assert "RAY_REDIS_ADDRESS" in client.wait_event("RayClusterRefused")


class TestSuspend:
    def test_the_runtime_answers_and_the_pods_go(self, running):
        running.patch({"suspend": True})
        running.wait_phase("Suspending")
        assert len(running.pods()) == 4
        running.report(suspendedAtStep=3)
        job = running.wait_phase("Suspended")
        assert condition(job, "Suspended")["message"].startswith("Checkpoint of step 3 written")
        assert running.pods() == []
        running.patch({"suspend": False})
        assert running.wait_phase("Running", attempt=2)["status"]["restarts"] == 0

    def test_without_an_answer_the_pods_go_after_the_grace(self, client):
        client.create({"runPolicy": {"suspendGraceSeconds": 2}})
        client.wait_phase("Running")
        client.patch({"suspend": True})
        client.wait_phase("Suspended")
        assert "suspendGraceSeconds" in client.wait_event("SuspendTimedOut")

    def test_a_driver_that_stopped_for_it_is_no_failure(self, running):
        running.patch({"suspend": True})
        running.wait_phase("Suspending")
        running.end_driver(130)
        assert running.wait_phase("Suspended")["status"]["failures"] == 0

    def test_created_suspended_nothing_is_made(self, client):
        client.create({"suspend": True})
        client.wait_phase("Suspended")
        assert client.pods() == [] and client.cluster.api.items(client.clusters_path) == []
        client.patch({"suspend": False})
        client.wait_phase("Running", attempt=1)


class TestQueue:
    """The test is Kueue: it changes `spec.suspend` of the RayClusters, and nothing else does."""

    LABELS = {"kueue.x-k8s.io/queue-name": "team-a", "kueue.x-k8s.io/priority-class": "high"}

    def queued(self, client, name):
        """The RayCluster waits, and KubeRay has seen that."""
        message = f"Waiting for Kueue to admit RayCluster {name} to queue team-a."
        job = client.wait(
            lambda job: (condition(job, "PodsReady") or {}).get("message") == message, "WaitingForAdmission"
        )
        [made] = client.cluster.wait(
            client.clusters_path,
            lambda clusters: [each.get("status", {}).get("state") for each in clusters] == ["suspended"],
            "one RayCluster, suspended",
        )
        assert made["metadata"]["name"] == name and made["spec"]["suspend"] is True
        assert self.LABELS.items() <= made["metadata"]["labels"].items()
        assert job["status"]["phase"] == "Pending" and not {"attemptTime", "startTime"} & job["status"].keys()
        assert name not in [each["metadata"]["labels"]["ray.io/cluster"] for each in client.pods()]
        return job

    def set_suspend(self, client, name, value):
        client.cluster.api.request("PATCH", f"{client.clusters_path}/{name}", {"spec": {"suspend": value}})

    def test_admitted_evicted_and_queued_again(self, client):
        client.create({"/metadata.labels": self.LABELS})
        self.queued(client, "test-1")
        self.set_suspend(client, "test-1", False)
        job = client.wait_phase("Running", attempt=1)
        assert job["status"]["attemptTime"] == job["status"]["startTime"]
        client.scale(2)
        client.wait(lambda job: job["status"]["pools"][1]["ready"] == 2, "two fast rollout workers")

        client.cluster.stop_component("kwok")  # no pod ends by itself
        self.set_suspend(client, "test-1", True)
        client.wait_condition("PodsReady", "False", "Evicted")
        [made] = client.cluster.api.items(client.clusters_path)
        assert (made["metadata"]["name"], client.get()["status"]["phase"]) == ("test-1", "Running")
        client.end_driver(130)
        told = client.wait_event("HeadLost")
        assert told.startswith("Kueue evicted RayCluster test-1. The driver was stopped (deleted")
        client.cluster.start_component("kwok")
        status = self.queued(client, "test-2")["status"]
        assert (status["failures"], status["restarts"]) == (0, 1)

        client.patch({"suspend": True})
        client.wait_phase("Suspended")
        assert client.cluster.api.items(client.clusters_path) == []
        client.patch({"suspend": False})
        self.queued(client, "test-3")
        self.set_suspend(client, "test-3", False)
        assert client.wait_phase("Running", attempt=3)["status"]["restarts"] == 0

    def test_a_start_deadline_counts_from_the_admission(self, client):
        client.create({"/metadata.labels": self.LABELS, "runPolicy": {"startDeadlineSeconds": 3}})
        self.queued(client, "test-1")
        client.cluster.stop_component("kwok")  # no pod becomes ready
        self.set_suspend(client, "test-1", False)
        ended = client.wait_phase("Failed")["status"]
        assert condition({"status": ended}, "Failed")["reason"] == "StartDeadlineExceeded"
        lasted = datetime.fromisoformat(ended["completionTime"]) - datetime.fromisoformat(ended["startTime"])
        assert lasted.total_seconds() >= 3


class TestEnd:
    def test_done(self, running):
        running.report(step=4, progress="4/4")
        running.operator_has_seen()
        running.end_driver(0)
        job = running.wait_phase("Complete")
        assert "Trained 4 of 4 steps." in condition(job, "Complete")["message"]
        running.wait_pods(lambda pods: not pods, "no pods")

    def test_refused(self, running):
        running.end_driver(2, "spec.training.model.path: no such folder: /models/a")
        why = condition(running.wait_phase("Failed"), "Failed")
        assert (why["reason"], why["message"]) == (
            "InvalidConfiguration",
            "spec.training.model.path: no such folder: /models/a",
        )

    def test_failed_again_and_again(self, client):
        client.create({"runPolicy": {"backoffLimit": 1}})
        client.wait_phase("Running", attempt=1)
        with client.seeing_phase("Restarting"):
            client.end_driver(1, "out of memory")
        again = client.wait_phase("Running", attempt=2)
        assert (again["status"]["failures"], again["status"]["restarts"]) == (1, 1)
        client.end_driver(1, "out of memory")
        why = condition(client.wait_phase("Failed"), "Failed")
        assert why["reason"] == "BackoffLimitExceeded" and "out of memory" in why["message"]

    def test_it_is_removed_after_its_time(self, client):
        client.create({"runPolicy": {"ttlSecondsAfterFinished": 1}})
        client.wait_phase("Running")
        client.end_driver(0)
        client.wait_gone()

    def test_deleting_leaves_nothing(self, running):
        running.cluster.kubectl("delete", "rljob", "test", "-n", running.namespace)
        running.wait_gone()

    def test_one_of_its_name_waits_for_the_driver_that_it_leaves(self, running):
        """Its head is in its grace period: no name is taken that the new job's first attempt needs."""
        [head] = running.pods("head")
        running.delete_pod(head["metadata"]["name"], gracePeriodSeconds=0)
        running.wait_phase("Running", attempt=2)
        cluster = running.cluster
        cluster.stop_component("kwok")
        cluster.kubectl("delete", "rljob", "test", "-n", running.namespace)
        cluster.wait(running.clusters_path, lambda clusters: not clusters, "no RayCluster")
        running.create()
        waits = running.wait_condition("PodsReady", "False", "WaitingForRemoval")
        assert waits["message"].startswith("Waiting for RayCluster test-2 to be removed: not this RLJob's")
        assert cluster.api.items(running.clusters_path) == [] and len(running.pods("head")) == 1
        cluster.start_component("kwok")
        running.wait_phase("Running", attempt=1)


class TestLoss:
    def test_a_rollout_pod(self, running):
        [lost, _] = running.pods("fastRollout")
        running.cluster.stop_kuberay()  # which would make a new pod at once
        running.fail_pod(lost["metadata"]["name"])
        assert lost["metadata"]["name"] in running.wait_event("RolloutWorkerLost")
        running.wait_condition("Degraded", "True", "RolloutWorkerLost")
        running.cluster.start_kuberay()
        running.wait_condition("Degraded", "False")
        job = running.wait_phase("Running", attempt=1)
        assert job["status"]["failures"] == job["status"]["restarts"] == 0

    def test_a_rollout_pod_that_is_replaced_at_once(self, running):
        names = {each["metadata"]["name"] for each in running.pods("fastRollout")}
        for lost in sorted(names):
            running.fail_pod(lost)
        told = running.wait_event("RolloutWorkerLost")
        assert any(f"{name} (Error, exit code 1)" in told for name in names)
        running.wait(
            lambda job: job["status"]["pools"][1]["ready"] == 2, "two fast rollout workers, as it was before"
        )

    def test_a_trainer_pod(self, running):
        [lost] = running.pods("trainer")
        running.cluster.stop_kuberay()  # which would make a new pod at once
        running.fail_pod(lost["metadata"]["name"])
        assert lost["metadata"]["name"] in running.wait_event("TrainerWorkerLost")
        running.wait_condition("Degraded", "True", "TrainerWorkerLost")
        running.cluster.start_kuberay()
        running.wait_condition("Degraded", "False")
        assert running.wait_phase("Running", attempt=1)["status"]["failures"] == 0

    def test_the_head(self, running):
        [head] = running.pods("head")
        running.delete_pod(head["metadata"]["name"], gracePeriodSeconds=0)
        job = running.wait_phase("Running", attempt=2)
        assert (job["status"]["failures"], job["status"]["restarts"]) == (0, 1)
        assert head["metadata"]["name"] in running.wait_event("HeadLost")

    def test_a_pre_empted_head_costs_no_failure(self, running):
        [head] = running.pods("head")
        condition = {"type": "DisruptionTarget", "status": "True", "reason": "PreemptionByScheduler"}
        conditions = [*head["status"]["conditions"], condition]
        running.fail_pod(head["metadata"]["name"], conditions=conditions)
        job = running.wait_phase("Running", attempt=2)
        assert job["status"]["failures"] == 0
        assert "PreemptionByScheduler" in running.wait_event("HeadLost")

    def test_the_node_of_the_head(self, running):
        [head] = running.pods("head")
        node = f"/api/v1/nodes/{head['spec']['nodeName']}"
        gone = {"key": "rljob.dev/test", "effect": "NoExecute"}
        running.cluster.api.request("PATCH", node, {"spec": {"taints": [gone]}})
        try:
            # A scheduler that has not seen the taint yet may place the next head there, which is lost, too.
            job = running.wait(lambda each: runs_since(each, attempt=2), "a later attempt")
        finally:
            running.cluster.api.request("PATCH", node, {"spec": {"taints": None}})
        assert job["status"]["failures"] == 0
        assert "DeletionByTaintManager" in running.wait_event("HeadLost")

    def test_an_eviction_of_the_head(self, running):
        """As `kubectl drain` does it."""
        [head] = running.pods("head")
        metadata = {"name": head["metadata"]["name"], "namespace": running.namespace}
        eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": metadata}
        path = f"{running.pods_path}/{metadata['name']}/eviction"
        running.cluster.api.request("POST", path, eviction)
        job = running.wait_phase("Running", attempt=2)
        assert job["status"]["failures"] == 0
        assert "EvictionByEvictionAPI" in running.wait_event("HeadLost")

    def test_a_node_that_is_deleted(self, running):
        """Its pods are removed by the pod garbage collector, which waits for a while."""
        [head] = running.pods("head")
        path = f"/api/v1/nodes/{head['spec']['nodeName']}"
        node = running.cluster.api.request("GET", path)
        running.cluster.api.request("DELETE", path)
        try:
            job = running.wait_phase("Running", attempt=2)
        finally:
            kept = ("name", "labels", "annotations")
            metadata = {key: value for key, value in node["metadata"].items() if key in kept}
            again = {"apiVersion": "v1", "kind": "Node", "metadata": metadata, "spec": {}}
            running.cluster.api.request("POST", "/api/v1/nodes", {**again, "status": node["status"]})
        assert job["status"]["failures"] == 0
        assert "DeletionByPodGC" in running.wait_event("HeadLost")

    def test_a_worker_on_a_node_that_does_not_answer(self, running):
        """It is deleted and stays; KubeRay would count it for as long as it does."""
        cluster = running.cluster
        [lost, _] = running.pods("fastRollout")
        name = lost["metadata"]["name"]
        cluster.stop_component("kwok")
        running.delete_pod(name, gracePeriodSeconds=1)
        pods = running.wait_pods(
            lambda pods: (
                sum(each["metadata"]["labels"]["rljob.dev/pool"] == "fastRollout" for each in pods) == 3
            ),
            "another worker",
        )
        assert name in [each["metadata"]["name"] for each in pods]
        assert not running.get()["status"].get("scaleDowns")
        cluster.start_component("kwok")
        running.wait_pods(
            lambda pods: name not in [each["metadata"]["name"] for each in pods], f"{name} to be gone"
        )
        running.wait(lambda job: job["status"]["pools"][1]["ready"] == 2, "two fast rollout workers")

        def listed(clusters):
            groups = (group for each in clusters for group in each["spec"]["workerGroupSpecs"])
            return [group for group in groups if (group.get("scaleStrategy") or {}).get("workersToDelete")]

        cluster.wait(running.clusters_path, lambda clusters: not listed(clusters), "nothing listed")
        job = running.wait_phase("Running", attempt=1)
        assert (job["status"]["failures"], len(running.pods("fastRollout"))) == (0, 2)
