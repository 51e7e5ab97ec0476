"""Live pools of the real KubeRay change their size, and no worker that holds work is lost."""

import pytest

from tests.support.operator.operator_site import SHARED, JobClient, condition, running_operator
from tests.support.operator.scaling_site import scale_at_random

JOBS, SCALE_DOWNS = 4, 5
"""`tests/bench/scale_down_kuberay.py` makes more than 200 under each KubeRay."""


@pytest.fixture
def operator(cluster, namespace, tmp_path):
    with running_operator(cluster, tmp_path, namespace) as started:
        yield started


@pytest.mark.every_kuberay
async def test_random_sizes_kill_no_busy_worker(cluster, namespace, operator, kuberay):
    record = await scale_at_random(cluster, namespace, JOBS, SCALE_DOWNS, seed=1)
    assert record.scale_downs >= JOBS * SCALE_DOWNS and record.scale_ups > 0
    assert len(record.gone) > JOBS
    assert record.busy == []
    assert record.unnamed == []


async def test_a_busy_worker_that_is_killed_is_noticed(cluster, namespace, operator):
    """Where the runtime releases nothing, and has no time to, the operator takes workers that hold work:
    those that judge see it."""
    grace = {"runPolicy": {"drainGraceSeconds": 0}}
    record = await scale_at_random(cluster, namespace, 1, 2, seed=2, changes=grace, deaf=True)
    assert record.busy != [] and record.unnamed == []


class TestByHand:
    @pytest.fixture
    def client(self, cluster, namespace, operator):
        client = JobClient(cluster, namespace)
        grace = {"runPolicy": {"drainGraceSeconds": 120}}
        client.create({"pools.fastRollout.replicas": 3, **grace, **SHARED})
        client.wait_phase("Running")
        return client

    def ready(self, client, pool, count):
        return client.wait(
            lambda job: job["status"]["pools"][pool]["ready"] == count, f"{count} ready workers"
        )

    def test_the_runtime_names_the_pods_that_go(self, client):
        names = sorted(pod["metadata"]["name"] for pod in client.pods("fastRollout"))
        client.cluster.kubectl("scale", "rljob", "test", "-n", client.namespace, "--replicas=1")
        job = client.wait(lambda job: job["status"].get("scaleDowns"), "a scale-down")
        assert "waiting for the runtime to free pods of fast-rollout" in condition(job, "Running")["message"]
        client.report(released=[names[0]])
        client.wait(lambda job: job["status"]["training"].get("released") == [names[0]], "one released")
        assert len(client.pods("fastRollout")) == 3  # one is not enough: both go together
        client.report(released=names[:2])
        self.ready(client, 1, 1)
        job = client.wait(lambda job: not job["status"].get("scaleDowns"), "the scale-down to be over")
        assert [pod["metadata"]["name"] for pod in client.pods("fastRollout")] == names[2:]
        assert "2 removed, 1 wanted" in client.wait_event("ScaledDown")
        assert job["status"]["fastRolloutReplicas"] == 1

    def test_without_an_answer_pods_go_after_the_grace(self, client):
        client.patch({"runPolicy": {"drainGraceSeconds": 2}})
        client.scale(1)
        self.ready(client, 1, 1)
        assert "drainGraceSeconds are over" in client.wait_event("DrainTimedOut")

    def test_a_trainer_of_another_size(self, client):
        client.patch({"pools": {"trainer": {"replicas": 3}}})
        job = client.wait(lambda job: job["status"].get("scaleDowns"), "a resize")
        assert "to stop for trainer" in condition(job, "Running")["message"]
        assert len(client.pods("trainer")) == 1
        client.report(trainerStoppedFor=3)
        self.ready(client, 0, 3)
        client.report()
        client.patch({"pools": {"trainer": {"replicas": 2}}})
        client.wait(lambda job: job["status"].get("scaleDowns"), "a resize")
        client.report(trainerStoppedFor=2)
        self.ready(client, 0, 2)
        job = client.wait(lambda job: not job["status"].get("scaleDowns"), "no resize any more")
        assert (job["status"]["attempt"], job["status"]["restarts"]) == (1, 0)
        assert len(client.pods("fastRollout")) == 3
