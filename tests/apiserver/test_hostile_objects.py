"""Objects that the API server stores, and whoever reads them from a list can hardly decode: they cost nobody
else's job anything."""

import http.client
import json
import os
import ssl
from urllib.parse import urlsplit

import pytest

from rljob_operator.kubectl.main import main
from tests.support.jobs import job
from tests.support.operator.operator_site import OWN_PYTHONPATH, SMALL, JobClient, running_operator, until

LEVELS = 5_000
DEEP = '{"a":' * LEVELS + "1" + "}" * LEVELS
FIELDS = '{"f:a":' * LEVELS + "{}" + "}" * LEVELS
TOO_DEEP = "must not be nested deeper than 60 levels"


def store(cluster, path, document, text):
    """Make an object in which `text`, which no decoder here could read, stands for the string DEEP."""
    api = cluster.api
    body = json.dumps(document).replace('"DEEP"', text).encode()
    where = urlsplit(api.url)
    tls = ssl.create_default_context(cafile=api._authority)
    connection = http.client.HTTPSConnection(where.hostname, where.port, context=tls, timeout=120.0)
    try:
        headers = {"Authorization": f"Bearer {api.token}", "Content-Type": "application/json"}
        connection.request("POST", path, body, headers)
        answer = connection.getresponse()
        said = answer.read()
        assert answer.status == 201, said[:2000]
        return len(said)
    finally:
        connection.close()


def deep_job(client, field):
    changes = {
        "image": "rljob/runtime:1",
        "/metadata.name": client.name,
        "/metadata.namespace": client.namespace,
        **{f"pools.{pool}.resources": SMALL for pool in ("head", "trainer", "fastRollout")},
        field: {"spec": "DEEP"},
    }
    return store(client.cluster, client.jobs, job(changes), DEEP)


@pytest.fixture
def namespaces(cluster, namespace):
    """Of somebody who makes such objects, and of somebody else."""
    other = f"{namespace}-b"
    cluster.api.request("POST", "/api/v1/namespaces", {"metadata": {"name": other}})
    cluster.wait(f"/api/v1/namespaces/{other}/serviceaccounts", bool, f"a default service account in {other}")
    yield namespace, other
    cluster.repair()
    cluster.api.request("DELETE", f"/api/v1/namespaces/{other}")


def accepted(client):
    path = '{.status.conditions[?(@.type=="Accepted")].message}'
    return client.cluster.kubectl("get", "rlj", client.name, "-n", client.namespace, "-o", f"jsonpath={path}")


def test_a_job_that_is_nested_too_deep_says_so_and_the_others_run(cluster, namespaces, tmp_path, capsys):
    """One is there when the operator starts, and one comes while it watches."""
    there, comes = (JobClient(cluster, namespaces[0], name) for name in ("there", "comes"))
    first, second = (JobClient(cluster, namespaces[1], name) for name in ("first", "second"))
    assert deep_job(there, "pools.head.template") > LEVELS * 5
    with running_operator(cluster, tmp_path, None) as operator:
        first.create()
        first.wait_phase("Running")
        deep_job(comes, "storage.volume")
        until(lambda: accepted(comes), "Accepted of a job that came later")
        second.create()
        second.wait_phase("Running")
        assert f"spec.pools.head.template: {TOO_DEEP}" in accepted(there)
        assert f"spec.storage.volume: {TOO_DEEP}" in accepted(comes)
        said = ["status", "there", "-n", there.namespace, "--kubeconfig", str(cluster.kubeconfig)]
        assert main(said) == 0
        assert TOO_DEEP in capsys.readouterr().out
        log = operator.process.log.read_text()
        assert "Traceback" not in log and "begins anew" not in log and "kopf has ended" not in log
        for client in (there, comes):
            cluster.kubectl("delete", "rlj", client.name, "-n", client.namespace, "--wait=true")


def test_a_pod_with_a_jobs_label_whose_managed_fields_are_nested_deep(cluster, namespaces, tmp_path):
    """The one part of a pod that is stored as it was sent."""
    first, second = (JobClient(cluster, namespaces[1], name) for name in ("first", "second"))
    fields = {"apiVersion": "v1", "fieldsType": "FieldsV1", "fieldsV1": "DEEP"}
    managed = [{**fields, "manager": "x", "operation": "Update", "time": "2026-01-01T00:00:00Z"}]
    labels = {"rljob.dev/job": "first", "rljob.dev/attempt": "1", "rljob.dev/pool": "trainer"}
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "deep", "labels": labels, "managedFields": managed},
        "spec": {"containers": [{"name": "x", "image": "x"}]},
    }
    path = f"/api/v1/namespaces/{namespaces[0]}/pods"
    assert store(cluster, path, pod, FIELDS) > LEVELS * 5
    with running_operator(cluster, tmp_path, None) as operator:
        first.create()
        first.wait_phase("Running")
        pod["metadata"]["name"] = "deep-too"
        store(cluster, path, pod, FIELDS)
        second.create()
        second.wait_phase("Running")
        assert "Traceback" not in operator.process.log.read_text()


DEFECT = """
from rljob_operator.plan import decide as module
works = module.decide

def decide(observed, now):
    spec = observed.job.spec
    if spec is not None and spec.run_policy.backoff_limit == 13:
        raise KeyError("unlucky")
    return works(observed, now)

module.decide = decide
"""


def test_a_job_about_which_nothing_can_be_decided_says_so_and_the_others_run(
    cluster, namespaces, tmp_path, capsys
):
    """An operator with a defect that one spec brings about, while its job runs."""
    client, other = (JobClient(cluster, namespaces[1], name) for name in ("unlucky", "other"))
    (tmp_path / "sitecustomize.py").write_text(DEFECT)
    defective = {"PYTHONPATH": f"{tmp_path}{os.pathsep}{OWN_PYTHONPATH}"}
    with running_operator(cluster, tmp_path, namespaces[1], environment=defective) as operator:
        client.create()
        client.wait_phase("Running")
        client.patch({"runPolicy": {"backoffLimit": 13}})
        client.wait_condition("Accepted", "False", "OperatorDefect")
        assert client.get()["status"]["phase"] == "Running"
        assert "goes on with other jobs" in client.wait_event("OperatorDefect")
        said = ["status", "unlucky", "-n", client.namespace, "--kubeconfig", str(cluster.kubeconfig)]
        assert main(said) == 0
        assert "OperatorDefect: The operator cannot decide" in capsys.readouterr().out
        other.create()
        other.wait_phase("Running")
        assert "KeyError: 'unlucky'" in operator.process.log.read_text()
        client.patch({"runPolicy": {"backoffLimit": 3}})
        client.wait_condition("Accepted", "True", "Accepted")
