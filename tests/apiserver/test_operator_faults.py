"""The operator when it, its network, the API server or KubeRay fails: nothing is lost, nothing done twice."""

import asyncio
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from itertools import groupby

import pytest

from rljob_client.credentials import find_credentials
from rljob_operator.plan.attempt import UNSEEN
from tests.support.operator.fault_proxy import Answer, Cut, CutAfter, Delay, FaultProxy
from tests.support.operator.operator_site import (
    SECONDS,
    SHARED,
    JobClient,
    as_operator,
    running_operator,
    until,
    writes,
)
from tools.cluster import Cluster
from tools.cluster.processes import ended_within

IDLE_SECONDS = 6.0
"""Longer than any interval at which the operator would do something by itself."""
HEAD_NOTED = ("patch", "rayclusters")
"""Verb and resource of the last write for a job that has come to run."""


def reconciled(operator, times=1):
    """Wait until this process has brought jobs one step on so often."""

    def enough():
        operator.process.check()
        return operator.metric("rljob_reconcile_duration_seconds_count") >= times

    until(enough, f"{times} jobs reconciled")


class TestRestart:
    @pytest.fixture
    def client(self, cluster, namespace):
        return JobClient(cluster, namespace)

    def test_killed_and_started_again_it_changes_nothing_and_goes_on(self, cluster, client, tmp_path):
        with running_operator(cluster, tmp_path, client.namespace) as operator:
            client.create()
            client.wait_phase("Running")
            others = [JobClient(cluster, client.namespace, name) for name in ("suspended", "waiting")]
            others[0].create({"suspend": True})
            others[0].wait_phase("Suspended")
            others[1].create({"accelerator": "nvidia", "pools.trainer.replicas": 99, **SHARED})
            others[1].wait_condition("PodsReady", "False", "WaitingForPods")
            others[1].wait_pods(lambda pods: len(pods) > 90, "pods")
            operator.process.stop(kill=True)
            before = client.versions()
            operator.process.start()
            reconciled(operator, 3)
            after = client.versions()
            assert {name: version for name, version in after.items() if "waiting" not in name} == {
                name: version for name, version in before.items() if "waiting" not in name
            }
            client.scale(2)
            client.wait(lambda job: job["status"]["pools"][1]["ready"] == 2, "two fast rollout workers")
            operator.process.stop()  # SIGTERM: in order, within its time

    @pytest.mark.every_kuberay
    def test_how_a_head_ended_meanwhile_is_found_out(self, cluster, client, tmp_path, kuberay):
        """KubeRay deletes the pod at once; what it says of it in an Event is all that is left."""
        with running_operator(cluster, tmp_path, client.namespace) as operator:
            client.create()
            client.wait_phase("Running")
            operator.process.stop()
            [head] = client.pods("head")
            ended = {"exitCode": 137, "reason": "OOMKilled"}
            statuses = [
                {**each, "ready": False, "started": False, "state": {"terminated": ended}}
                for each in head["status"]["containerStatuses"]
            ]
            status = {"phase": "Failed", "containerStatuses": statuses}
            client.set_pod_status(head["metadata"]["name"], status)
            uid = head["metadata"]["uid"]
            client.wait_pods(
                lambda pods: uid not in [each["metadata"]["uid"] for each in pods], "no such head"
            )
            # KubeRay tells a moment after it has deleted the pod.
            events = f"/api/v1/namespaces/{client.namespace}/events"
            cluster.wait(
                events, lambda told: "DeletedHeadPod" in [each["reason"] for each in told], "KubeRay's Event"
            )
            operator.process.start()
            job = client.wait_phase("Running", attempt=2)
            assert job["status"]["failures"] == 1
            assert "OOMKilled, exit code 137" in client.wait_event("Restarting")

    def test_a_job_that_was_done_meanwhile_is_not_trained_again(self, cluster, client, tmp_path):
        with running_operator(cluster, tmp_path, client.namespace) as operator:
            client.create()
            client.wait_phase("Running")
            operator.process.stop()
            client.report(step=4, progress="4/4", completed=True)
            client.end_driver(0)
            [head] = client.pods("head")
            path = f"/api/v1/namespaces/{client.namespace}/pods/{head['metadata']['name']}"
            client.cluster.api.request("DELETE", f"{path}?gracePeriodSeconds=0")
            uid = head["metadata"]["uid"]
            client.wait_pods(
                lambda pods: uid not in [each["metadata"]["uid"] for each in pods], "no such head"
            )
            operator.process.start()
            job = client.wait_phase("Complete")
            assert job["status"]["attempt"] == 1

    def test_told_to_end_it_gives_its_lease_back_at_once(self, cluster, client, tmp_path):
        with running_operator(cluster, tmp_path, client.namespace) as operator:
            client.create()
            client.wait_phase("Running")
            began = time.monotonic()
            operator.process.stop()
            assert time.monotonic() - began < 15.0  # it would be killed after 20 s, and the lease expire then
        lease = f"/apis/coordination.k8s.io/v1/namespaces/{client.namespace}/leases/rljob-operator"
        assert not cluster.api.request("GET", lease)["spec"].get("holderIdentity")

    def test_an_idle_job_costs_no_write(self, cluster, client, tmp_path):
        account = as_operator(cluster, client.namespace)
        user = f"system:serviceaccount:{client.namespace}:the-operator"
        with running_operator(cluster, tmp_path, client.namespace, kubeconfig=account):
            client.create()
            client.wait_phase("Running")
            client.wait_event("Running")
            events = cluster.api.items(f"/api/v1/namespaces/{client.namespace}/events")
            own = [each for each in events if each["reportingComponent"] == "rljob.dev/operator"]
            names = {each["metadata"]["name"] for each in own}
            assert names

            def audited():
                made = writes(cluster, client.namespace, user)
                written = {each["objectRef"].get("name") for each in made}
                noted = [each for each in made if (each["verb"], each["objectRef"]["resource"]) == HEAD_NOTED]
                return made if names <= written and noted else []

            # Phase and Events can be seen before the head is noted, and before the audit log has them.
            made = until(audited, "all Events and the note of the head in the audit log")
            time.sleep(IDLE_SECONDS)  # nothing is to happen
            assert writes(cluster, client.namespace, user)[len(made) :] == []

    def test_a_job_deleted_meanwhile_is_forgotten(self, cluster, client, tmp_path):
        with running_operator(cluster, tmp_path, client.namespace) as operator:
            client.create()
            client.wait_phase("Running")
            operator.process.stop(kill=True)
            cluster.api.request("DELETE", f"{client.jobs}/test")
            client.wait_gone()
            operator.process.start()
            client.create()
            client.wait_phase("Running", attempt=1)


def test_an_api_server_that_is_down_for_half_a_minute(cluster, namespace, tmp_path):
    client = JobClient(cluster, namespace)
    with running_operator(cluster, tmp_path, namespace) as operator:
        client.create()
        client.wait_phase("Running")
        cluster.stop_component("kube-apiserver")
        assert not ended_within(operator.process.pid, 30), "the operator ended"
        cluster.start_component("kube-apiserver")
        client.scale(3)
        job = client.wait(lambda job: job["status"]["pools"][1]["ready"] == 3, "three fast rollout workers")
        assert (job["status"]["attempt"], job["status"]["failures"]) == (1, 0)
        log = operator.process.log.read_text().splitlines()
        of_lease = [line for line in log if "kube.lease" in line]
        assert [line for line in of_lease if "too old" in line] == []
        # It tries every two seconds.
        assert len([line for line in of_lease if "tried again" in line]) <= 8, "the same, time and again"
        # Counted by the instance that lost the lease, after which all has begun anew.
        assert operator.metric("rljob_lease_renewals_total", 'outcome="failed"') > 0
        began = time.monotonic()
        operator.process.stop()
        assert time.monotonic() - began < 15.0  # it would be killed after 20 s
    lease = f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases/rljob-operator"
    assert not cluster.api.request("GET", lease)["spec"].get("holderIdentity")


class TestKubeRay:
    def test_installed_later(self, programs, tmp_path):
        nodes = {"nvidia.com/gpu": 2}
        with Cluster(kuberay=None, nodes=nodes) as cluster, running_operator(cluster, tmp_path, None):
            client = JobClient(cluster, "default")
            accounts = "/api/v1/namespaces/default/serviceaccounts"
            cluster.wait(accounts, bool, "a default service account")
            client.create()
            why = client.wait_condition("PodsReady", "False", "KubeRayMissing")
            assert "install KubeRay 1.4 or newer" in why["message"]
            assert "install KubeRay" in client.wait_event("KubeRayMissing")
            cluster.start_kuberay("1.6.2")
            client.wait_phase("Running", attempt=1)

    def test_stopped_for_a_while(self, cluster, namespace, tmp_path):
        client = JobClient(cluster, namespace)
        with running_operator(cluster, tmp_path, namespace):
            cluster.stop_kuberay()
            client.create()
            client.wait_condition("PodsReady", "False", "WaitingForKubeRay")
            cluster.start_kuberay()
            client.wait_phase("Running", attempt=1)


class ThreadedProxy:
    """A fault proxy on a loop and thread of its own, for tests that block."""

    def __init__(self, kubeconfig) -> None:
        self._kubeconfig = kubeconfig
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)

    @contextmanager
    def running(self) -> Iterator[FaultProxy]:
        credentials = find_credentials(self._kubeconfig)
        self._thread.start()
        proxy = FaultProxy(credentials.server, credentials.tls)
        self.call(proxy.__aenter__())
        try:
            yield proxy
        finally:
            self.call(proxy.__aexit__(None, None, None))
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(10)

    def call(self, work):
        """Run a coroutine on the proxy's loop."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(SECONDS)

    @contextmanager
    def blackout(self, proxy: FaultProxy) -> Iterator[None]:
        """Nothing passes while this lasts, and what is under way then breaks."""
        dark = proxy.blackout()
        self.call(_on_loop(dark.__enter__))
        try:
            yield
        finally:
            self.call(_on_loop(proxy.cut))
            self.call(_on_loop(lambda: dark.__exit__(None, None, None)))


FAULTS = {
    "conflicts": (Answer(409, reason="Conflict"), "PATCH"),
    "overload": (Answer(429, reason="TooManyRequests", retry_after=1), ""),
    "server errors": (Answer(500, reason="InternalError"), ""),
    "lists expired": (Answer(410, reason="Expired"), "GET"),
    "answers lost": (Cut(carried_out=True), "PATCH"),
    "creations whose answers are lost": (Cut(carried_out=True), "POST"),
    "requests lost": (Cut(), ""),
    "answers cut": (CutAfter(300), "GET"),
    "delays": (Delay(1.0), "PATCH"),
}
"""What the proxy does to the next requests of a method (empty: any)."""


@pytest.fixture(scope="class")
def proxied(cluster, tmp_path_factory):
    """A proxy, and an operator behind it."""
    threaded = ThreadedProxy(cluster.kubeconfig)
    folder = tmp_path_factory.mktemp("proxied")
    with threaded.running() as proxy, running_operator(cluster, folder, None, server=proxy.url):
        yield threaded, proxy


class TestNetwork:
    @pytest.fixture
    def client(self, cluster, namespace, proxied):
        return JobClient(cluster, namespace)

    @pytest.mark.parametrize(("fault", "method"), FAULTS.values(), ids=FAULTS.keys())
    def test_a_job_lives_through(self, client, proxied, fault, method):
        _, proxy = proxied
        jobs = f"/namespaces/{client.namespace}/"
        proxy.inject(fault, 2, method, jobs)
        client.create()
        client.wait_phase("Running", attempt=1)
        proxy.inject(fault, 2, method, jobs)
        client.scale(2)
        client.wait(lambda job: job["status"]["pools"][1]["ready"] == 2, "two fast rollout workers")
        client.patch({"suspend": True})
        client.wait_phase("Suspending")
        client.report(suspendedAtStep=3)
        job = client.wait_phase("Suspended")
        assert (job["status"]["attempt"], job["status"]["failures"]) == (1, 0)
        assert client.pods() == []

    def test_watches_that_break_and_expire(self, client, proxied):
        threaded, proxy = proxied
        client.create()
        client.wait_phase("Running")
        threaded.call(_on_loop(proxy.cut))
        client.scale(2)
        client.wait(lambda job: job["status"]["pools"][1]["ready"] == 2, "two fast rollout workers")
        threaded.call(proxy.expire_watches())
        client.scale(3)
        client.wait(lambda job: job["status"]["pools"][1]["ready"] == 3, "three fast rollout workers")

    def test_watches_that_say_nonsense(self, client, proxied):
        threaded, proxy = proxied
        client.create()
        client.wait_phase("Running")
        assert threaded.call(proxy.garble_watches()) > 0
        client.scale(2)
        client.wait(lambda job: job["status"]["pools"][1]["ready"] == 2, "two fast rollout workers")

    def test_a_job_deleted_while_nothing_is_heard(self, client, proxied):
        """The watch that begins anew does not tell of it."""
        threaded, proxy = proxied
        client.create()
        client.wait_phase("Running")
        with threaded.blackout(proxy):
            client.cluster.api.request("DELETE", f"{client.jobs}/test")
            client.wait_gone()
        client.create()
        client.wait_phase("Running", attempt=1)

    def test_an_attempt_whose_pods_no_watch_tells_of_goes_on(self, cluster, namespace, tmp_path):
        """Pods are listed, and no watch of them gets an answer. KubeRay says that all are ready; a minute
        later the head counts as gone."""
        client, threaded = JobClient(cluster, namespace), ThreadedProxy(cluster.kubeconfig)
        with (
            threaded.running() as proxy,
            running_operator(cluster, tmp_path, namespace, server=proxy.url, start=False) as operator,
        ):
            proxy.inject(Delay(SECONDS), 1000, "GET", "/pods?watch")
            operator.process.start()
            client.create()
            cluster.wait(client.clusters_path, lambda found: any(map(_provisioned, found)), "all pods ready")
            time.sleep(UNSEEN.total_seconds() + 10.0)  # nothing is to happen
            status = client.get()["status"]
            assert (status["attempt"], status["clusterName"]) == (1, "test-1")
            assert len(client.pods("head")) == 1


def _provisioned(ray_cluster):
    conditions = ray_cluster.get("status", {}).get("conditions", ())
    return any((each["type"], each["status"]) == ("RayClusterProvisioned", "True") for each in conditions)


async def _on_loop(work):
    """A proxy is touched on its own loop alone."""
    return work()


class TestTwoReplicas:
    @pytest.mark.parametrize("blow", [signal.SIGKILL, signal.SIGSTOP])
    def test_only_one_writes(self, cluster, namespace, tmp_path, blow):
        client, other = JobClient(cluster, namespace), JobClient(cluster, namespace, "other")
        with ExitStack() as stack:
            first, second = (
                stack.enter_context(
                    running_operator(
                        cluster,
                        tmp_path,
                        namespace,
                        name=f"{name}-replica",
                        kubeconfig=as_operator(cluster, namespace, name),
                        start=name == "first",
                    )
                )
                for name in ("first", "second")
            )
            client.create()
            client.wait_phase("Running")
            second.process.start()
            first.process.signal(blow)
            other.create()
            other.wait_phase("Running")
            if blow is signal.SIGSTOP:
                first.process.signal(signal.SIGCONT)  # it still believes that it leads
            else:
                first.process.stop()
            for fast in (2, 3):
                client.scale(fast)
                ready = f"{fast} fast rollout workers"
                client.wait(lambda job, fast=fast: job["status"]["pools"][1]["ready"] == fast, ready)
        users = [event["user"]["username"].rpartition(":")[2] for event in writes(cluster, namespace)]
        turns = [user for user, _ in groupby(each for each in users if each in ("first", "second"))]
        assert turns == ["first", "second"]
