"""An operator under a definition of RLJobs of the next release, and of the one before."""

from copy import deepcopy

import pytest
import yaml

from rljob_runtime.cluster.drive import parse
from tests.support.jobs import job
from tests.support.operator.operator_site import JobClient, condition, running_operator, until
from tools.cluster import Cluster
from tools.cluster.cluster import RLJOB_DEFINITION
from tools.cluster.custom_resources import DEFINITIONS

NAME = f"{DEFINITIONS}/rljobs.rljob.dev"
ADDED = {
    "retryPolicy": {"type": "string", "default": "fast"},
    "audit": {
        "type": "object",
        "default": {},
        "properties": {"days": {"type": "integer", "default": 3}},
    },
}
LEFT_OUT = "spec.runPolicy.audit, spec.runPolicy.retryPolicy"


@pytest.fixture(scope="module")
def cluster(programs):
    """One of its own: a definition is every namespace's."""
    with Cluster(nodes={"nvidia.com/gpu": 1}) as started:
        yield started


@pytest.fixture(scope="module")
def operator(cluster, tmp_path_factory):
    with running_operator(cluster, tmp_path_factory.mktemp("operator"), "default") as started:
        yield started


def this_release():
    [version] = yaml.safe_load(RLJOB_DEFINITION.read_text())["spec"]["versions"]
    return version


def next_release():
    """It has two more fields, each with a default."""
    version = deepcopy(this_release())
    spec = version["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]
    spec["runPolicy"]["properties"] |= ADDED
    # A default that is given for an object hides those within it.
    spec["runPolicy"]["default"] |= {"retryPolicy": "fast", "audit": {"days": 3}}
    return version


def release_before():
    """It lacks a field of the spec that has a default, and one of the status."""
    version = deepcopy(this_release())
    fields = version["schema"]["openAPIV3Schema"]["properties"]
    policy = fields["spec"]["properties"]["runPolicy"]
    del policy["properties"]["restartLimit"], policy["default"]["restartLimit"]
    del fields["status"]["properties"]["specDigest"]
    return version


def serve(cluster, version, *policy):
    """Replace the definition, and wait until objects get these fields of `runPolicy` and no others."""
    cluster.api.request("PATCH", NAME, {"spec": {"versions": [version]}})
    probe = job({"/metadata.name": "probe", "/metadata.namespace": "default"})
    path = "/apis/rljob.dev/v1alpha1/namespaces/default/rljobs?dryRun=All"

    def served():
        made = cluster.api.request("POST", path, probe)["spec"]["runPolicy"]
        return {"restartLimit", "retryPolicy", "audit"} & made.keys() == set(policy)

    until(served, "the definition")


def running(cluster, name):
    client = JobClient(cluster, "default", name)
    client.create()
    return client, client.wait_phase("Running")["status"]


def pods_and_clusters(client):
    """What a new attempt, or a change of this one, would change."""
    clusters = client.cluster.api.items(client.clusters_path)
    found = {each["metadata"]["name"]: each["metadata"] for each in [*client.pods(), *clusters]}
    return {name: (each["uid"], each.get("generation")) for name, each in found.items()}


def test_the_next_releases_defaults_disturb_no_job(cluster, operator):
    serve(cluster, this_release(), "restartLimit")
    # It would notice by itself, later.
    operator.process.stop()
    operator.process.start()
    old, before = running(cluster, "old")
    made = pods_and_clusters(old)
    serve(cluster, next_release(), "restartLimit", "retryPolicy", "audit")
    found = old.get()
    assert found["spec"]["runPolicy"]["audit"] == {"days": 3}
    # The driver of an attempt that begins now; then the operator that begins to lead now.
    driven = parse(found).spec.run_policy
    assert (driven.restart_limit, driven.backoff_limit) == (100, 3)
    operator.process.stop()
    operator.process.start()
    told = old.wait(lambda each: LEFT_OUT in condition(each, "Accepted")["message"], LEFT_OUT)
    assert condition(told, "Accepted")["status"] == "True"
    assert told["status"]["specDigest"] == before["specDigest"]
    _, status = running(cluster, "new")
    assert status["specDigest"] == before["specDigest"]
    now = old.get()["status"]
    assert (now["attempt"], now["phase"], made.items() <= pods_and_clusters(old).items()) == (
        1,
        "Running",
        True,
    )


def test_what_the_release_before_cannot_store_is_left_out(cluster, operator):
    serve(cluster, release_before())
    job, status = running(cluster, "job")
    assert "specDigest" not in status and status["attempt"] == 1
    log = operator.process.log.read_text()
    assert "lacks status.specDigest, which is left out of what is written" in log
    assert "put right" not in log
    # One that begins to lead reads what was stored, and goes on with it.
    operator.process.stop()
    operator.process.start()
    job.operator_has_seen()
    now = job.get()["status"]
    assert (now["attempt"], now["phase"]) == (1, "Running")
