"""The chart on a real API server with the real Helm: its life, and whether its rights are those in use.

The operator runs here as a process, with the token of the chart's service account; the Deployment's pods are
fake.
"""

import json
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from typing import Any

import pytest
import yaml

from rljob_operator.controller.leadership import CLUSTER_LEASE, NAMESPACE_LEASE
from tests.chart.helm import (
    CHART,
    NAMESPACE,
    RELEASE,
    HelmFailed,
    helm,
    of_kind,
    render,
    the,
    values_options,
)
from tests.support.last_release import THIS_RELEASE, Release
from tests.support.operator.operator_site import OWN_PYTHONPATH, JobClient, running_operator, until
from tools.cluster import KUBERAY_VERSIONS, Cluster
from tools.cluster.api import holds
from tools.cluster.binaries import program
from tools.cluster.cluster import RLJOB_DEFINITION
from tools.cluster.custom_resources import wait_until_served
from tools.cluster.families import HELM

pytestmark = pytest.mark.timeout(600, func_only=True)
ACCOUNT = f"system:serviceaccount:{NAMESPACE}:rljob-operator"
OLD = "0.0.9"
NOT_SENT = {
    # Asked for by the admission plug-in OwnerReferencesPermissionEnforcement, for owners that are set.
    ("update", "rljob.dev", "rljobs/finalizers"),
    ("delete", "coordination.k8s.io", "leases"),
    # Sent where a job was deleted and no watch told of it.
    ("get", "rljob.dev", "rljobs"),
}
"""Rights that no request of this life uses."""
Right = tuple[str, str, str]
"""Verb, API group, resource or resource/subresource."""


@pytest.fixture(scope="module")
def chart_cluster(programs, pytestconfig) -> Iterator[Cluster]:
    """A cluster of this file's own: with KubeRay, and no definition of RLJobs."""
    program(HELM, "helm")
    with Cluster(
        kuberay=KUBERAY_VERSIONS[0], nodes={"nvidia.com/gpu": 2}, audit=True, owner_permissions=True
    ) as cluster:
        cluster.kubectl("delete", "crd", "rljobs.rljob.dev")
        yield cluster


@pytest.fixture
def site(chart_cluster):
    yield chart_cluster
    for release in helm("list", "-q", "-n", NAMESPACE, kubeconfig=chart_cluster.kubeconfig).split():
        uninstall(chart_cluster, release)
    chart_cluster.kubectl("delete", "crd", "rljobs.rljob.dev", "--ignore-not-found")
    # Those of the last release have no owner.
    chart_cluster.kubectl("delete", "leases", "--all", "-n", NAMESPACE)
    chart_cluster.kubectl("delete", "lease", CLUSTER_LEASE, "-n", "kube-system", "--ignore-not-found")


@pytest.fixture
def old_chart(tmp_path):
    """A chart of an older version, whose definition lacks a field."""
    folder = tmp_path / "old"
    shutil.copytree(CHART, folder)
    chart = yaml.safe_load((folder / "Chart.yaml").read_text())
    (folder / "Chart.yaml").write_text(yaml.safe_dump({**chart, "version": OLD, "appVersion": OLD}))
    path = folder / "files" / "rljobs.rljob.dev.yaml"
    definition = yaml.safe_load(path.read_text())
    del run_policy(definition)["ttlSecondsAfterFinished"]
    text = yaml.safe_dump(definition["spec"])
    indented = "".join(f"  {line}\n" for line in text.splitlines())
    head = path.read_text().partition("spec:\n")[0]
    path.write_text(f"{head}spec:\n{indented}")
    return folder


def run_policy(definition: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of spec.runPolicy that a definition has."""
    schema = definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    fields: dict[str, Any] = schema["properties"]["spec"]["properties"]["runPolicy"]["properties"]
    return fields


def install(cluster: Cluster, chart=CHART, *options: str, release: str = RELEASE) -> None:
    """Installs or upgrades a release, and waits until its pods are ready and RLJobs are served."""
    helm(
        *("upgrade", release, str(chart), "--install", f"--namespace={NAMESPACE}", "--create-namespace"),
        *("--wait", "--timeout=180s", *options),
        kubeconfig=cluster.kubeconfig,
    )
    wait_until_served(cluster.api, [RLJOB_DEFINITION])


def uninstall(cluster: Cluster, release: str = RELEASE) -> None:
    helm("uninstall", release, f"--namespace={NAMESPACE}", "--wait", kubeconfig=cluster.kubeconfig)


def definition_of(cluster: Cluster) -> dict[str, Any]:
    path = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/rljobs.rljob.dev"
    found: dict[str, Any] = cluster.api.request("GET", path)
    return found


def new_namespace(cluster: Cluster, name: str) -> str:
    cluster.kubectl("create", "namespace", name)
    return name


class TestLife:
    def test_an_upgrade_brings_the_definition_along(self, site, old_chart):
        install(site, old_chart)
        assert "ttlSecondsAfterFinished" not in run_policy(definition_of(site))
        install(site)
        assert "ttlSecondsAfterFinished" in run_policy(definition_of(site))
        listed = helm("list", "-n", NAMESPACE, kubeconfig=site.kubeconfig)
        assert "deployed" in listed and "rljob-operator-0.1.0" in listed

    def test_jobs_outlive_the_release_and_its_return(self, site):
        install(site)
        namespace = new_namespace(site, "outlives")
        client = JobClient(site, namespace)
        uid = client.create()["metadata"]["uid"]
        uninstall(site)
        assert client.get()["metadata"]["uid"] == uid
        # The Deployment's pods go after it.
        until(lambda: not of_release(site), "nothing of the release")
        install(site)
        assert client.get()["metadata"]["uid"] == uid
        site.kubectl("delete", "namespace", namespace, seconds=300)

    def test_everything_goes_where_that_is_asked_for(self, site):
        install(site, CHART, "--set=crds.keep=false")
        uninstall(site)
        assert "rljobs" not in site.kubectl("get", "crd", "-o", "name")

    def test_a_definition_that_kubectl_made_can_be_taken_over(self, site):
        site.kubectl("apply", "--server-side", "-f", str(CHART / "files" / "rljobs.rljob.dev.yaml"))
        with pytest.raises(HelmFailed, match="invalid ownership metadata"):
            install(site)
        install(site, CHART, "--take-ownership")
        assert definition_of(site)["metadata"]["labels"]["app.kubernetes.io/managed-by"] == "Helm"

    def test_the_namespace_may_be_restricted(self, site):
        labels = {"pod-security.kubernetes.io/enforce": "restricted"}
        namespace = {
            "apiVersion": "v1",
            "kind": "Namespace",
            "metadata": {"name": NAMESPACE, "labels": labels},
        }
        site.kubectl("apply", "--server-side", "-f", "-", stdin=json.dumps(namespace))
        install(site)
        # Those of an earlier release may still be on their way out.
        pods = site.wait(f"/api/v1/namespaces/{NAMESPACE}/pods", lambda pods: len(pods) == 2, "two pods")
        assert all(holds(each, "Ready") for each in pods)


def test_rights_are_those_that_are_used(site, tmp_path):
    """As the chart's account, no request of a life with all that the operator does is refused, and each right
    is used; with the release its Leases go."""
    install(site)
    account = site.kubeconfig_of(NAMESPACE, "rljob-operator")
    before = len(site.audit_events(ACCOUNT))
    client = JobClient(site, new_namespace(site, "rights"))
    with running_operator(
        *(site, tmp_path, None),
        kubeconfig=account,
        lease_namespace=NAMESPACE,
        name="first",
        arguments=lease_roles(),
    ) as first:
        live(client)
        with running_operator(
            *(site, tmp_path, None),
            kubeconfig=account,
            lease_namespace=NAMESPACE,
            name="second",
            arguments=lease_roles(),
        ):
            # The second watches the lease, and takes it when the first gives it back.
            until(lambda: ("watch", "leases") in asked(site, before), "a watch of the lease")
            first.process.stop()
            other = JobClient(site, client.namespace, "other")
            other.create()
            other.wait_phase("Running")
            assert set(leases(site)) == {f"{NAMESPACE}/rljob-operator", f"kube-system/{CLUSTER_LEASE}"}
    events = site.audit_events(ACCOUNT)[before:]
    refused = [each for each in events if each["responseStatus"]["code"] == 403]
    assert [(each["verb"], each["requestURI"]) for each in refused] == []
    used = {right(each) for each in events if "objectRef" in each}
    assert used <= set(rights())
    assert set(rights()) - used - NOT_SENT == set()
    uninstall(site)
    until(lambda: not leases(site), "no Lease of the release")


def test_upgraded_from_the_last_release_and_rolled_back(site, last_release, tmp_path):
    """Chart, rights and operator are exchanged together, forth and back: a job that runs goes on and grows,
    and one that is made starts."""
    namespace = new_namespace(site, "upgrades")
    lasting = JobClient(site, namespace, "lasting")
    before, head = len(site.audit_events(ACCOUNT)), None
    # Helm numbers what it has done to a release from 1.
    rollback = ("rollback", RELEASE, "1", f"--namespace={NAMESPACE}", "--wait", "--timeout=180s")
    exchanges: list[tuple[Release, Callable[[], object]]] = [
        (last_release, lambda: install(site, last_release.chart)),
        (THIS_RELEASE, lambda: install(site)),
        (last_release, lambda: helm(*rollback, kubeconfig=site.kubeconfig)),
    ]
    for number, (release, exchange) in enumerate(exchanges):
        exchange()
        with running_operator(
            site,
            tmp_path,
            None,
            name=f"operator-{number}",
            kubeconfig=site.kubeconfig_of(NAMESPACE, "rljob-operator"),
            lease_namespace=NAMESPACE,
            arguments=lease_roles() if release is THIS_RELEASE else (),
            environment=release.environment,
        ):
            if head is None:
                lasting.create()
                lasting.wait_phase("Running")
                [head] = [each["metadata"]["uid"] for each in lasting.pods("head")]
            lasting.scale(2 + number)
            lasting.wait_pods(lambda pods, want=4 + number: len(pods) == want, "another fast rollout pod")
            made = JobClient(site, namespace, f"made-{number}")
            made.create()
            made.wait_phase("Running")
            lasting.operator_has_seen()
            status = lasting.wait_phase("Running")["status"]
            assert status["attempt"] == 1
            assert [each["metadata"]["uid"] for each in lasting.pods("head")] == [head]
    events = site.audit_events(ACCOUNT)[before:]
    assert [each["requestURI"] for each in events if each["responseStatus"]["code"] == 403] == []


def test_one_namespace_needs_no_rights_elsewhere(site, tmp_path):
    namespace = new_namespace(site, "alone")
    install(site, CHART, f"--set=watchNamespace={namespace}")
    account = site.kubeconfig_of(NAMESPACE, "rljob-operator")
    before = len(site.audit_events(ACCOUNT))
    client = JobClient(site, namespace)
    with running_operator(
        site, tmp_path, namespace, kubeconfig=account, lease_namespace=NAMESPACE, name="alone"
    ):
        client.create()
        client.wait_phase("Running")
    events = site.audit_events(ACCOUNT)[before:]
    assert [each["requestURI"] for each in events if each["responseStatus"]["code"] == 403] == []
    assert {each["objectRef"].get("namespace") for each in events if "objectRef" in each} == {
        namespace,
        NAMESPACE,
    }


def test_releases_in_one_namespace_work_beside_each_other(site, tmp_path):
    """One for all namespaces, and two for one namespace each: each does the work of its own, and their Leases
    go with them."""
    teams = {release: new_namespace(site, f"{release}-jobs") for release in ("team-a", "team-b")}
    before = set(leases(site))
    watched = {RELEASE: None, **teams}
    with ExitStack() as stack:
        for release, namespace in watched.items():
            values = {"replicaCount": 1}
            if namespace is not None:
                values |= {"watchNamespace": namespace, "crds.install": False}
            install(site, CHART, *values_options(values), release=release)
            made = the(render(values, release=release), "Deployment")["spec"]["template"]["spec"]
            given = {each["name"]: each["value"] for each in made["containers"][0]["env"]}
            running = running_operator(
                site,
                tmp_path,
                namespace,
                name=release,
                kubeconfig=site.kubeconfig_of(NAMESPACE, made["serviceAccountName"]),
                lease_namespace=NAMESPACE,
                environment={"PYTHONPATH": OWN_PYTHONPATH, **given},
            )
            operator = stack.enter_context(running)
            until(lambda at=operator: at.metric("rljob_leader") == 1, f"{release} works")
        for namespace in (*teams.values(), new_namespace(site, "other-jobs")):
            client = JobClient(site, namespace)
            client.create()
            client.wait_phase("Running")
        assert set(leases(site)) - before == {
            *(f"{NAMESPACE}/{name}" for name in ("rljob-operator", *(f"{t}-rljob-operator" for t in teams))),
            *(f"{namespace}/{NAMESPACE_LEASE}" for namespace in teams.values()),
            f"kube-system/{CLUSTER_LEASE}",
        }
    for release in watched:
        uninstall(site, release)
    until(lambda: set(leases(site)) <= before, "no Lease of the releases")


def lease_roles() -> tuple[str, ...]:
    """The options of the Roles that own the Leases, as the chart sets them by variables."""
    [container] = the(render(), "Deployment")["spec"]["template"]["spec"]["containers"]
    given = {each["name"]: each["value"] for each in container["env"]}
    return (
        f"--lease-role={given['RLJOB_LEASE_ROLE']}",
        f"--shared-lease-role={given['RLJOB_SHARED_LEASE_ROLE']}",
    )


def leases(cluster: Cluster) -> list[str]:
    """Namespace and name of the Leases of operators of RLJobs."""
    found = [each["metadata"] for each in cluster.api.items("/apis/coordination.k8s.io/v1/leases")]
    return [f"{each['namespace']}/{each['name']}" for each in found if "rljob-operator" in each["name"]]


def of_release(cluster: Cluster) -> str:
    """Names of what a release made and has left."""
    selector = f"--selector=app.kubernetes.io/instance={RELEASE}"
    kinds = "all,sa,role,rolebinding,networkpolicy,pdb"
    return cluster.kubectl("get", kinds, "-n", NAMESPACE, "-o", "name", selector) + cluster.kubectl(
        "get", "clusterrole,clusterrolebinding", "-o", "name", selector
    )


def asked(cluster: Cluster, before: int) -> set[tuple[str, str]]:
    """Verb and resource of what the chart's account has asked for, but for the first `before` requests."""
    events = cluster.audit_events(ACCOUNT)[before:]
    return {(each["verb"], each["objectRef"]["resource"]) for each in events if "objectRef" in each}


def live(client: JobClient) -> None:
    """A job that runs, grows, shrinks, is suspended, goes on, loses its head twice, ends and is removed."""
    policy = {"suspendGraceSeconds": 2, "drainGraceSeconds": 2, "ttlSecondsAfterFinished": 1}
    client.create({"pools.fastRollout.replicas": 2, "runPolicy": policy})
    client.wait_phase("Running")
    client.scale(3)
    client.wait_pods(lambda pods: len(pods) == 5, "three fast rollout pods")
    client.scale(1)
    client.wait_event("DrainTimedOut")
    client.wait_pods(lambda pods: len(pods) == 3, "one fast rollout pod")
    client.patch({"suspend": True})
    client.wait_phase("Suspended")
    meddle(client)
    client.patch({"suspend": False})
    client.wait_phase("Running", attempt=2)
    for attempt in (2, 3):  # the second event of a kind is counted into the first
        client.end_driver(1, "out of memory")
        client.wait_phase("Running", attempt=attempt + 1)
    client.end_driver(0)
    client.wait_gone()


def meddle(client: JobClient) -> None:
    """Somebody changes what belongs to the job. Its next attempt has all as it should be."""
    changes: dict[str, Any] = {
        "serviceaccount/test-driver": {"automountServiceAccountToken": True},
        "role/test-driver": {"rules": []},
        "rolebinding/test-driver": {
            "subjects": [{"kind": "ServiceAccount", "name": "other", "namespace": "other"}]
        },
        "networkpolicy/test-pods": {"spec": {"ingress": [{"ports": [{"port": 22}]}]}},
    }
    for name, change in changes.items():
        client.cluster.kubectl(
            "patch", name, "-n", client.namespace, "--type=merge", "-p", json.dumps(change)
        )


def right(event: Mapping[str, Any]) -> Right:
    """The right that a request needed."""
    about = event["objectRef"]
    sub = f"/{about['subresource']}" if about.get("subresource") else ""
    return event["verb"], about.get("apiGroup", ""), about["resource"] + sub


def rights() -> Iterator[Right]:
    """What the chart's roles let the operator do."""
    made = render({"rbac.userRoles": False})
    for role in of_kind(made, "ClusterRole") + of_kind(made, "Role"):
        for rule in role["rules"]:
            for group in rule["apiGroups"]:
                for resource in rule["resources"]:
                    for verb in rule["verbs"]:
                        yield verb, group, resource


def test_a_definition_that_goes_and_comes_back(site, tmp_path):
    """The operator has no right to watch definitions, and goes on all the same."""
    install(site)
    account = site.kubeconfig_of(NAMESPACE, "rljob-operator")
    first, second = (JobClient(site, new_namespace(site, name)) for name in ("goes", "comes"))
    with running_operator(site, tmp_path, None, kubeconfig=account, lease_namespace=NAMESPACE) as operator:
        first.create()
        first.wait_phase("Running")
        site.kubectl("delete", "crd", "rljobs.rljob.dev")
        until(lambda: "serves no rljobs.rljob.dev" in operator.readiness()[1], "not ready without RLJobs")
        install(site)
        until(lambda: operator.readiness() == (200, "ok"), "ready again")
        second.create()
        second.wait_phase("Running")
