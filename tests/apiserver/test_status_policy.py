"""What a job's account may write into its status: with the chart's policy, and what the operator makes of it
without."""

import json
import subprocess
import time
from functools import partial

import pytest

from tests.chart.helm import render
from tests.support.jobs import job
from tests.support.operator.operator_site import JobClient, running_operator
from tools.cluster import ApiError

POLICIES = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies"
RIGHTS = "/apis/rbac.authorization.k8s.io/v1/namespaces"
TRAINING = {"attempt": 1, "step": 3, "totalSteps": 4, "weightVersion": 3, "released": ["math-1-fast-x"]}
ATTACKS = {
    # what: (RLJob, status, what is said)
    "another RayCluster": (
        "math",
        {"clusterName": "other-1"},
        "this changes status.clusterName, which only the operator may write",
    ),
    "no failures, a later suspension": (
        "math",
        {"failures": 0, "suspendTime": "9999-12-31T23:59:59Z"},
        "a job may write status.training of its RLJob alone",
    ),
    "an attempt that is to come": (
        "math",
        {"training": {**TRAINING, "attempt": 2}},
        "status.training.attempt must be at most status.attempt, the newest attempt (1); found 2",
    ),
    "another job's pods": (
        "math",
        {"training": {**TRAINING, "released": ["math-1-fast-x", "other-1-fast-x"]}},
        "whose names begin with math-; found other-1-fast-x",
    ),
    "another RLJob": (
        "other",
        {"training": TRAINING},
        "ServiceAccount math-driver may write the status of its own RLJob alone, and this is RLJob other, "
        "whose account is other-driver",
    ),
}


OTHERS = "operator-of-another-release"


@pytest.fixture
def writers(cluster, namespace):
    """Functions that write into an RLJob's status, and give what the API server says: as the account of
    `math`, which has more rights than it should, and as an operator's that is at home in this namespace."""
    policy, binding = [each for each in render() if "AdmissionPolicy" in each["kind"]]
    jobs = f"/apis/rljob.dev/v1alpha1/namespaces/{namespace}/rljobs"
    rules = [
        {"apiGroups": ["rljob.dev"], "resources": ["rljobs", "rljobs/status"], "verbs": ["get", "patch"]}
    ]
    post = cluster.api.request
    for account, more in (("math-driver", []), (OTHERS, ["delete"])):
        subject = {"kind": "ServiceAccount", "name": account, "namespace": namespace}
        role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": account}
        name = {"metadata": {"name": account}}
        given = [{**rule, "verbs": [*rule["verbs"], *more]} for rule in rules]
        post("POST", f"/api/v1/namespaces/{namespace}/serviceaccounts", name)
        post("POST", f"{RIGHTS}/{namespace}/roles", {**name, "rules": given})
        post("POST", f"{RIGHTS}/{namespace}/rolebindings", {**name, "roleRef": role, "subjects": [subject]})
    for each in ("math", "other"):
        post("POST", jobs, job({"/metadata.name": each}))
        operators = {"attempt": 1, "failures": 2, "clusterName": f"{each}-1"}
        post("PATCH", f"{jobs}/{each}/status", {"status": operators})
    post("POST", POLICIES, policy)
    post("POST", f"{POLICIES[:-3]}ybindings", binding)

    def write(file, name, status):
        document = json.dumps({"status": status})
        command = ["patch", "rljob", name, "--subresource=status", "--type=merge", f"-p={document}"]
        call = [str(cluster.kubectl_path), f"--kubeconfig={file}", *command]
        done = subprocess.run(call, capture_output=True, text=True, timeout=180)
        return done.stdout if done.returncode == 0 else done.stderr

    yield [partial(write, cluster.kubeconfig_of(namespace, name)) for name in ("math-driver", OTHERS)]
    post("DELETE", f"{POLICIES[:-3]}ybindings/{binding['metadata']['name']}")
    post("DELETE", f"{POLICIES}/{policy['metadata']['name']}")


def test_an_honest_report_passes_and_attacks_are_told_what_is_allowed(cluster, namespace, writers):
    driver, operator = writers
    # The API server reads its policies now and then.
    deadline = time.monotonic() + 120
    while "ServiceAccount" not in driver("other", {"training": TRAINING}):
        assert time.monotonic() < deadline, "the policy is not in force"
    said = {name: driver(*attack[:2]) for name, attack in ATTACKS.items()}
    assert {name: text for name, text in said.items() if ATTACKS[name][2] not in text} == {}
    assert "patched" in driver("math", {"training": TRAINING})
    path = f"/apis/rljob.dev/v1alpha1/namespaces/{namespace}/rljobs/math"
    status = cluster.api.request("GET", path)["status"]
    assert TRAINING.items() <= status["training"].items()
    assert (status["attempt"], status["failures"], status["clusterName"]) == (1, 2, "math-1")
    assert "patched" in operator("math", {"failures": 1})
    # Whoever is no account of the namespace, such as a person with the right, is not the policy's business.
    cluster.api.request("PATCH", f"{path}/status", {"status": {"failures": 0}})


def test_without_the_policy_the_operator_makes_nothing_of_it(cluster, namespace, tmp_path):
    """Each such write had it delete the RayCluster and make another."""
    client = JobClient(cluster, namespace, "math")
    with running_operator(cluster, tmp_path, namespace) as operator:
        client.create()
        client.wait_phase("Running")
        made = [each["metadata"]["uid"] for each in cluster.api.items(client.clusters_path)]
        for number in range(200):
            hostile = {"attempt": number, "clusterName": f"x-{number}", "failures": 0, "headPod": "x"}
            hostile |= {"startTime": "0001-01-01T00:00:00+14:00", "suspendTime": "9999-12-31T23:59:59Z"}
            cluster.api.request("PATCH", f"{client.jobs}/math/status", {"status": hostile})
        with pytest.raises(ApiError, match="startTime in body must be of type date-time"):
            cluster.api.request("PATCH", f"{client.jobs}/math/status", {"status": {"startTime": "yesterday"}})
        # One that begins to lead remembers nothing: a head that is gone would end the attempt.
        operator.process.stop(kill=True)
        cluster.api.request("PATCH", f"{client.jobs}/math/status", {"status": hostile})
        operator.process.start()
        right = client.wait(lambda job: job["status"]["headPod"] != "x", "a status that is put right")
        assert right["status"]["attempt"] == 1
        client.patch({"runPolicy": {"suspendGraceSeconds": 2}})
        client.patch({"suspend": True})
        client.wait_condition("Suspended", "True")
    refs = [(each["verb"], each.get("objectRef", {})) for each in cluster.audit_events()]
    mine = [(verb, ref) for verb, ref in refs if ref.get("namespace") == namespace]
    writes = [verb for verb, ref in mine if ref["resource"] == "rayclusters" and verb in ("create", "delete")]
    assert len(made) == 1 and writes == ["create", "delete"]
