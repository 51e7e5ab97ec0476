"""The local Kubernetes itself: what the other tests here stand on."""

import json
import os
import signal
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml

from tests.support.jobs import job
from tests.support.operator.operator_site import until
from tools.cluster import KUBERAY_VERSIONS, ApiError, Cluster, ProcessFailed
from tools.cluster.families import KUBE
from tools.cluster.processes import READY_SECONDS, ended_within

ROOT = Path(__file__).parents[2]
WORKERS = 3


def ray_cluster(name="small", resource="nvidia.com/gpu", workers=WORKERS):
    def pod(limits):
        container = {"name": "ray", "image": "fake", "resources": {"limits": limits}}
        return {"spec": {"containers": [container]}}

    group = {
        "groupName": "workers",
        "replicas": workers,
        "minReplicas": 0,
        "maxReplicas": 10,
        "rayStartParams": {},
        "template": pod({"cpu": "1", resource: "4"}),
    }
    head = {"rayStartParams": {}, "template": pod({"cpu": "1"})}
    spec = {"rayVersion": "2.60.0", "headGroupSpec": head, "workerGroupSpecs": [group]}
    return {"apiVersion": "ray.io/v1", "kind": "RayCluster", "metadata": {"name": name}, "spec": spec}


def create(cluster, namespace, document):
    cluster.kubectl("create", "-n", namespace, "-f", "-", stdin=yaml.safe_dump(document))


def wait_for_pods(cluster, namespace, count):
    """Waits until exactly so many pods are there, all Running."""

    def running(pods):
        return len(pods) == count and all(pod["status"].get("phase") == "Running" for pod in pods)

    return cluster.wait(f"/api/v1/namespaces/{namespace}/pods", running, f"{count} pods running")


def test_api_server_is_ready_and_names_its_version(cluster):
    assert cluster.kubectl("get", "--raw", "/readyz") == "ok"
    version = json.loads(cluster.kubectl("version", "-o", "json"))
    assert (
        version["serverVersion"]["gitVersion"] == version["clientVersion"]["gitVersion"] == f"v{KUBE.version}"
    )


def test_rljobs_are_accepted_and_checked(cluster, namespace):
    create(cluster, namespace, job())
    assert cluster.kubectl("get", "rlj", "-n", namespace, "-o", "name") == "rljob.rljob.dev/test\n"
    with pytest.raises(subprocess.CalledProcessError) as refused:
        create(cluster, namespace, job({"/metadata.name": "other", "accelerator": "abacus"}))
    assert 'supported values: "nvidia", "ascend", "cpu"' in refused.value.__notes__[0]


@pytest.mark.every_kuberay
@pytest.mark.parametrize("resource", ["nvidia.com/gpu", "huawei.com/Ascend910"])
def test_a_ray_cluster_gets_its_pods_on_fake_nodes(cluster, namespace, kuberay, resource):
    assert cluster.kuberay_version == kuberay
    create(cluster, namespace, ray_cluster(resource=resource))
    pods = wait_for_pods(cluster, namespace, WORKERS + 1)
    workers = [pod for pod in pods if pod["metadata"]["labels"]["ray.io/node-type"] == "worker"]
    prefix = resource.partition(".")[0]
    assert len(workers) == WORKERS
    assert all(pod["spec"]["nodeName"].startswith(f"{prefix}-") for pod in workers)
    cluster.wait(
        f"/apis/ray.io/v1/namespaces/{namespace}/rayclusters",
        lambda found: [each.get("status", {}).get("state") for each in found] == ["ready"],
        "the RayCluster ready",
    )


@pytest.mark.every_kuberay
def test_the_mark_alone_chooses_the_version(cluster, request):
    assert cluster.kuberay_version == request.node.callspec.params["kuberay"]


def test_an_unmarked_test_runs_under_the_chosen_version(cluster, request):
    chosen = (
        request.config.getoption("--kuberay", None) or os.environ.get("RLJOB_KUBERAY") or KUBERAY_VERSIONS[0]
    )
    assert cluster.kuberay_version == chosen


def test_what_an_object_owns_goes_with_it(cluster, namespace):
    create(cluster, namespace, ray_cluster())
    wait_for_pods(cluster, namespace, WORKERS + 1)
    cluster.kubectl("delete", "raycluster", "small", "-n", namespace)
    wait_for_pods(cluster, namespace, 0)


@pytest.mark.parametrize("kill", [False, True], ids=["told", "killed"])
def test_the_api_server_comes_back_where_it_was_with_what_it_had(cluster, namespace, kill):
    create(cluster, namespace, job())
    url = cluster.api.url
    cluster.stop_component("kube-apiserver", kill=kill)
    with pytest.raises(ConnectionRefusedError):
        cluster.api.request("GET", "/readyz")
    cluster.start_component("kube-apiserver")
    assert cluster.api.url == url
    assert cluster.kubectl("get", "rlj", "-n", namespace, "-o", "name") == "rljob.rljob.dev/test\n"


def test_a_wait_outlasts_a_restart_of_the_api_server(cluster, namespace):
    accounts = f"/api/v1/namespaces/{namespace}/serviceaccounts"
    seen = []

    def two(found):
        seen.append(len(found))
        if len(seen) == 1:
            cluster.restart_apiserver(kill=True)
            cluster.kubectl("create", "serviceaccount", "second", "-n", namespace)
        return len(found) == 2

    cluster.wait(accounts, two, "two service accounts")
    assert seen[0] == 1 and seen[-1] == 2


def test_nothing_is_scheduled_or_made_while_its_component_is_down(cluster, namespace):
    cluster.stop_component("kube-scheduler")
    create(cluster, namespace, ray_cluster())
    pods = cluster.wait(
        f"/api/v1/namespaces/{namespace}/pods", lambda found: len(found) == WORKERS + 1, "all pods made"
    )
    assert not any(pod["spec"].get("nodeName") for pod in pods)
    cluster.start_component("kube-scheduler")
    wait_for_pods(cluster, namespace, WORKERS + 1)
    cluster.stop_kuberay(kill=True)
    assert cluster.kuberay_version is None
    smaller = [{"op": "replace", "path": "/spec/workerGroupSpecs/0/replicas", "value": 1}]
    cluster.kubectl("patch", "raycluster", "small", "-n", namespace, "--type=json", "-p", json.dumps(smaller))
    assert len(cluster.api.items(f"/api/v1/namespaces/{namespace}/pods")) == WORKERS + 1
    cluster.start_kuberay()
    wait_for_pods(cluster, namespace, 2)


def test_nodes_are_added(cluster):
    before = {node["metadata"]["name"] for node in cluster.api.items("/api/v1/nodes")}
    added = cluster.add_nodes("nvidia.com/gpu", 2)
    assert len(added) == 2 and not before & set(added)
    nodes = {node["metadata"]["name"]: node for node in cluster.api.items("/api/v1/nodes")}
    assert [nodes[name]["status"]["allocatable"]["nvidia.com/gpu"] for name in added] == ["8", "8"]


def test_a_service_account_may_do_only_what_rbac_grants(cluster, namespace):
    kubeconfig = cluster.kubeconfig_of(namespace, "default")
    for file in (kubeconfig, cluster.kubeconfig):
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
    command = [cluster.kubectl_path, f"--kubeconfig={kubeconfig}"]
    who = subprocess.run(
        [*command, "auth", "whoami", "-o", "json"], capture_output=True, check=True, timeout=180
    )
    assert (
        json.loads(who.stdout)["status"]["userInfo"]["username"]
        == f"system:serviceaccount:{namespace}:default"
    )
    refused = subprocess.run([*command, "get", "secrets"], capture_output=True, text=True, timeout=180)
    assert refused.returncode == 1 and "Forbidden" in refused.stderr


def test_requests_are_audited(cluster, namespace):
    cluster.kubectl("create", "serviceaccount", "audited", "-n", namespace)

    def written():
        return [
            (event["verb"], event["user"]["username"], event["responseStatus"]["code"])
            for event in cluster.audit_events()
            if event.get("objectRef", {}).get("namespace") == namespace and event["verb"] == "create"
            if event["objectRef"].get("name") == "audited" and event["objectRef"].get("subresource") is None
        ]

    assert until(written, "the creation in the audit log") == [("create", "admin", 201)]


def test_errors_say_what_and_where(cluster, namespace):
    with pytest.raises(ApiError, match=r"GET /api/v1/nodes/none: 404 NotFound: nodes \"none\" not found"):
        cluster.api.request("GET", "/api/v1/nodes/none")
    with pytest.raises(TimeoutError, match=r"after 0.5 s still not: no account.* has default \(no phase\)"):
        cluster.wait(
            f"/api/v1/namespaces/{namespace}/serviceaccounts", lambda _: False, "no account", seconds=0.5
        )
    with pytest.raises(ValueError, match=r"no component kublet: there are etcd, kube-apiserver"):
        cluster.stop_component("kublet")
    with pytest.raises(ValueError, match=r"no KubeRay 0.1 here: choose one of 1.6.2, 1.5.1, 1.4.2"):
        cluster.start_kuberay("0.1")


@pytest.fixture
def small(programs):
    """A second cluster beside the shared one: only a control plane."""
    made = Cluster(kuberay=None, nodes={}, scheduler=False)
    try:
        made.start()
        yield made
    finally:
        made.stop()


def pids(cluster):
    return [process.pid for process in cluster.components.values() if process.wanted]


def test_a_stopped_cluster_leaves_nothing(small):
    running, folder = pids(small), small.folder
    assert len(running) == 3
    small.stop()
    assert all(ended_within(pid, 0) for pid in running)
    assert not folder.exists()


def test_a_component_that_dies_is_told_with_the_end_of_its_log(small):
    etcd = small.components["etcd"]
    os.kill(etcd.pid, signal.SIGKILL)
    assert ended_within(etcd.pid, 60)
    with pytest.raises(ProcessFailed, match=r"etcd ended by itself with exit code -9:\n.*etcd\.log"):
        small.check()


def test_a_component_that_cannot_start_is_told_at_once(small):
    small.stop_component("kube-controller-manager")
    small.components["kube-controller-manager"].arguments.append("--no-such-flag")
    started = time.monotonic()
    with pytest.raises(
        ProcessFailed, match=r"(?s)ended by itself with exit code 1:.*unknown flag: --no-such-flag"
    ):
        small.start_component("kube-controller-manager")
    assert time.monotonic() - started < READY_SECONDS / 2


HOLD = """
import sys
from tools.cluster import Cluster
with Cluster(kuberay=None, nodes={}, scheduler=False) as cluster:
    print(*(process.pid for process in cluster.components.values() if process.wanted), flush=True)
    sys.stdin.read()
"""


def test_a_cluster_ends_with_the_process_that_started_it(programs, tmp_path):
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    with subprocess.Popen(
        [sys.executable, "-c", HOLD], cwd=ROOT, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as holder:
        running = [int(pid) for pid in holder.stdout.readline().split()]
        assert len(running) == 3 and not any(ended_within(pid, 0) for pid in running)
        holder.kill()
    assert all(ended_within(pid, 60) for pid in running)


def test_a_cluster_by_hand_outlives_its_command_and_ends_when_told(programs, tmp_path):
    folder = tmp_path / "by-hand"

    def command(*words):
        whole = [sys.executable, "-m", "tools.cluster", *words, f"--folder={folder}"]
        return subprocess.run(whole, cwd=ROOT, capture_output=True, text=True, check=True, timeout=360).stdout

    try:
        shown = command("up", "--nodes=1", "--npu-nodes=0")
        assert f"export KUBECONFIG={folder}/kubeconfig" in shown
        kubectl = [folder / "bin" / "kubectl", f"--kubeconfig={folder / 'kubeconfig'}"]
        nodes = subprocess.run([*kubectl, "get", "nodes", "-o", "name"], capture_output=True, timeout=180)
        assert nodes.stdout == b"node/nvidia-0\n"
        assert "a cluster runs already" in command("up")
    finally:
        ended = command("down")
    assert ended == "the cluster is gone\n" and not folder.exists()
    assert command("down") == "no cluster runs\n"
