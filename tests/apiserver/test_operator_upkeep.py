"""What the operator needs around the jobs: a definition that is new enough, names that are its own; and
namespaces and jobs that go away."""

import asyncio
import time
from random import Random

import pytest

from rljob_operator.controller.jobs import JobStore
from rljob_operator.controller.watched import informers
from tests.support.operator import rendered
from tests.support.operator.operator_site import JobClient, running_operator, until
from tools.cluster import Cluster
from tools.cluster.cluster import RLJOB_DEFINITION
from tools.cluster.custom_resources import DEFINITIONS, apply_definitions

NAME = f"{DEFINITIONS}/rljobs.rljob.dev"
SETTLED_SECONDS = 8.0
"""Longer than the operator waits between two looks at a definition that is too old."""


class TestDefinition:
    @pytest.fixture
    def old(self, programs):
        """A cluster whose definition is of a time when there were no `scaleDowns` and no `headPod`."""
        with Cluster(kuberay=None, nodes={}, scheduler=False) as cluster:
            definition = cluster.api.request("GET", NAME)
            [version] = definition["spec"]["versions"]
            status = version["schema"]["openAPIV3Schema"]["properties"]["status"]["properties"]
            for field in ("scaleDowns", "headPod"):
                del status[field]
            # Without a version to compare: the definition's controllers write to it, too.
            cluster.api.request("PATCH", NAME, {"spec": {"versions": [version]}})
            yield cluster

    def test_one_that_is_too_old_is_told_and_nothing_is_tried(self, old, tmp_path):
        client = JobClient(old, "default")
        with running_operator(old, tmp_path, None, start=False) as operator:
            operator.process.launch()

            def told():
                found = operator.readiness()
                return found if found[1].startswith("The cluster's Custom") else None

            code, text = until(told, "readyz")
            assert code == 503 and "lacks status.headPod, status.scaleDowns." in text
            client.create()
            assert "older than this operator" in client.wait_event("DefinitionOutdated")
            time.sleep(SETTLED_SECONDS)  # nothing is to happen
            assert "status" not in client.get()
            assert operator.metric("rljob_api_calls_total", 'verb="apply"') == 0
            assert operator.process.log.read_text().count("is older than this operator") <= 2  # and the Event
            apply_definitions(old.api, [RLJOB_DEFINITION])
            until(lambda: operator.readiness() == (200, "ok"), "readyz")
            client.wait_condition("PodsReady", "False", "KubeRayMissing")


@pytest.fixture
def client(cluster, namespace):
    return JobClient(cluster, namespace)


@pytest.fixture
def operator(cluster, namespace, tmp_path):
    with running_operator(cluster, tmp_path, namespace) as started:
        yield started


class TestAccess:
    def account(self, client, name, **metadata):
        account = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": name, **metadata}}
        accounts = f"/api/v1/namespaces/{client.namespace}/serviceaccounts"
        client.cluster.api.request("POST", accounts, account)
        return f"{accounts}/{name}"

    def test_what_somebody_else_made_is_not_taken_over(self, client, operator):
        path = self.account(client, "test-driver", labels={"app.kubernetes.io/name": "mine"})
        client.create()
        told = client.wait_event("NameTaken")
        assert "ServiceAccount test-driver exists and is somebody else's" in told
        assert client.cluster.api.items(client.clusters_path) == []
        assert (
            client.cluster.api.request("GET", path)["metadata"]["labels"]["app.kubernetes.io/name"] == "mine"
        )
        client.cluster.api.request("DELETE", path)
        client.wait_phase("Running", attempt=1)

    def test_an_account_without_a_word_in_common_is_not_taken_over_either(self, client, operator):
        """It sets none of the fields that ours has: no conflict of fields tells that it is another's."""
        path = self.account(client, "test-driver")
        before = client.cluster.api.request("GET", path)
        client.create()
        assert "ServiceAccount test-driver exists and is somebody else's" in client.wait_event("NameTaken")
        client.wait_condition("PodsReady", "False", "NameTaken")
        assert client.cluster.api.request("GET", path) == before
        assert "ownerReferences" not in before["metadata"]

    def test_a_name_that_becomes_free_is_noticed(self, client, operator):
        """The RayCluster carries no label of ours: no watch tells that it goes."""
        made = rendered.cluster()
        foreign = {**made, "metadata": {"name": "test-1"}, "spec": {**made["spec"], "suspend": True}}
        client.cluster.api.request("POST", client.clusters_path, foreign)
        client.create()
        assert "RayCluster test-1 exists and is not this RLJob's" in client.wait_event("NameTaken")
        assert client.wait_condition("PodsReady", "False", "NameTaken")["message"].endswith("UTC.")
        client.cluster.api.request("DELETE", f"{client.clusters_path}/test-1")
        client.wait_phase("Running", attempt=1)

    def test_what_is_deleted_while_a_job_runs_comes_back(self, client, operator):
        """Looked for when the operator starts, and every few minutes."""
        client.create()
        client.wait_phase("Running")
        operator.process.stop()
        rbac = f"/apis/rbac.authorization.k8s.io/v1/namespaces/{client.namespace}"
        paths = [f"{rbac}/roles", f"{rbac}/rolebindings"]
        paths += [f"/apis/networking.k8s.io/v1/namespaces/{client.namespace}/networkpolicies"]
        deleted = [(path, f"test-{'pods' if 'networking' in path else 'driver'}") for path in paths]
        for path, name in deleted:
            client.cluster.api.request("DELETE", f"{path}/{name}")
        before = client.versions()
        operator.process.start()
        for path, name in deleted:
            what = f"{name} among {path}"
            [found] = client.cluster.wait(path, bool, what)
            assert found["metadata"]["name"] == name
        after = client.versions()
        assert {path: after[path] for path in before} == before

    def test_what_exists_is_brought_up_to_date(self, client, operator):
        """Made for the first attempt, it has another account in the second."""
        client.create({"runPolicy": {"suspendGraceSeconds": 0}})
        client.wait_phase("Running")
        self.account(client, "own-account")
        client.patch({"suspend": True})
        client.wait_phase("Suspended")
        template = {"spec": {"serviceAccountName": "own-account"}}
        client.patch({"suspend": False, "pools": {"head": {"template": template}}})
        client.wait_phase("Running", attempt=2)
        bindings = f"/apis/rbac.authorization.k8s.io/v1/namespaces/{client.namespace}/rolebindings"
        [subject] = client.cluster.api.request("GET", f"{bindings}/test-driver")["subjects"]
        assert subject["name"] == "own-account"


class TestGone:
    def test_a_namespace_that_goes_is_let_go(self, cluster, namespace, tmp_path):
        going = f"{namespace}-going"
        body = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": going}}
        cluster.api.request("POST", "/api/v1/namespaces", body)
        cluster.wait(f"/api/v1/namespaces/{going}/serviceaccounts", bool, "a default service account")
        with running_operator(cluster, tmp_path, None, lease_namespace=namespace) as operator:
            client = JobClient(cluster, going)
            client.create()
            client.wait_phase("Running")
            cluster.api.request("DELETE", f"/api/v1/namespaces/{going}")
            cluster.wait(client.pods_path, lambda pods: not pods, "no pods")
            cluster.wait(client.jobs, lambda jobs: not jobs, "no jobs")
            lines = operator.process.log.read_text().splitlines()
            assert [line for line in lines if going in line and "next try" in line] == []

    async def test_a_job_deleted_unseen_is_forgotten(self, here, client):
        woken = []
        jobs = JobStore(woken.append, {})
        first, second = client, JobClient(client.cluster, client.namespace, "second")
        watched = informers(
            here.client, client.namespace, jobs, woken.append, woken.append, here.metrics, Random(0)
        )

        async def listen_for_a_moment():
            running = asyncio.create_task(watched.jobs.run())
            await watched.jobs.refresh()
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)

        for each in (first, second):
            each.create()
        await listen_for_a_moment()
        refs = [(client.namespace, "second"), (client.namespace, "test")]
        client.cluster.api.request("DELETE", f"{client.jobs}/test")
        await listen_for_a_moment()
        assert jobs.refs() == refs[:1] and woken == [*refs, refs[1]]
        assert jobs.count("Pending", left=lambda namespace: False) == 1
        first.create()
        await listen_for_a_moment()
        assert set(jobs.refs()) == set(refs)


def test_a_successor_leads_at_once(cluster, namespace, tmp_path):
    """The lease of a predecessor that was told to end does not have to expire."""
    with running_operator(cluster, tmp_path, namespace) as operator:
        until(lambda: operator.metric("rljob_leader") == 1, "a leader")
        operator.process.stop()
        lease = f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases/rljob-operator"
        assert not cluster.api.request("GET", lease)["spec"].get("holderIdentity")
        operator.process.start()
        # From here on: its lease would expire 15 s after the successor, which is ready now, has seen it.
        began = time.monotonic()
        until(lambda: operator.metric("rljob_leader") == 1, "a leader")
        assert time.monotonic() - began < 10.0
