"""The keys of a job, and the image of jobs that name none: made by a real operator on a real API server."""

import base64
import re

import pytest

from tests.support.operator.operator_site import JobClient, as_operator, running_operator
from tools.cluster.api import Object

RESTRICTED = {"metadata": {"labels": {"pod-security.kubernetes.io/enforce": "restricted"}}}


@pytest.fixture
def client(cluster, namespace):
    return JobClient(cluster, namespace)


def secrets_of(client: JobClient) -> list[Object]:
    label = {"labelSelector": f"rljob.dev/job={client.name}"}
    return client.cluster.api.items(f"/api/v1/namespaces/{client.namespace}/secrets", label)


def values(secret: Object) -> dict[str, str]:
    return {name: base64.b64decode(value).decode() for name, value in secret["data"].items()}


def fail_once(client: JobClient) -> None:
    """The attempt fails; the next one runs."""
    client.end_driver(1, "lost")
    client.wait_phase("Running", attempt=2)


def images(pods: list[Object]) -> set[str]:
    return {each["image"] for pod in pods for each in pod["spec"]["containers"]}


def everything(client: JobClient) -> str:
    """All objects of the namespace but Secrets, as one text."""
    kinds = "rljobs,rayclusters,pods,services,events,configmaps,serviceaccounts,roles,networkpolicies"
    return client.cluster.kubectl("get", kinds, "-n", client.namespace, "-o", "yaml", "--show-managed-fields")


def test_keys_are_made_once_and_are_nowhere_else(cluster, client, tmp_path):
    cluster.api.request("PATCH", f"/api/v1/namespaces/{client.namespace}", RESTRICTED)
    account = as_operator(cluster, client.namespace)
    with running_operator(cluster, tmp_path, client.namespace, kubeconfig=account) as operator:
        client.create()
        client.wait_phase("Running")
        [secret] = secrets_of(client)
        assert sorted(values(secret)) == ["ray-token", "wire-key"]
        assert all(re.fullmatch("[0-9a-f]{64}", each) for each in values(secret).values())
        assert len(set(values(secret).values())) == 2
        assert secret["immutable"] is True
        assert [each["name"] for each in secret["metadata"]["ownerReferences"]] == [client.name]

        operator.process.stop(kill=True)
        operator.process.start()
        fail_once(client)
        assert secrets_of(client) == [secret]

        told = everything(client) + operator.process.log.read_text()
        assert secret["metadata"]["name"] in told
        assert [name for name, value in values(secret).items() if value in told] == []
        assert [name for name, value in secret["data"].items() if value in told] == []

        cluster.api.request("DELETE", f"{client.jobs}/{client.name}")
        client.wait_gone()
        client.create()
        client.wait_phase("Running")
        [anew] = secrets_of(client)
        assert set(values(anew).values()).isdisjoint(values(secret).values())
    user = f"system:serviceaccount:{client.namespace}:the-operator"
    asked = {
        event["verb"]
        for event in cluster.audit_events(user)
        if event.get("objectRef", {}).get("resource") == "secrets"
    }
    assert asked == {"create"}


def test_jobs_do_not_share_keys(cluster, client, tmp_path):
    other = JobClient(cluster, client.namespace, "other")
    with running_operator(cluster, tmp_path, client.namespace):
        for each in (client, other):
            each.create()
        for each in (client, other):
            each.wait_phase("Running")
        [one], [another] = secrets_of(client), secrets_of(other)
        assert set(values(one).values()).isdisjoint(values(another).values())


def test_another_default_image_holds_from_the_next_attempt(cluster, client, tmp_path):
    first, second = ("--runtime-image", "cpu=site/runtime:1"), ("--runtime-image", "cpu=site/runtime:2")
    with running_operator(cluster, tmp_path, client.namespace, arguments=first):
        client.create({"image": None})
        client.wait_phase("Running")
        assert images(client.pods()) == {"site/runtime:1"}
    with running_operator(cluster, tmp_path, client.namespace, arguments=second, name="upgraded"):
        client.scale(2)
        client.wait_pods(lambda pods: len(pods) == 4, "a pod more")
        assert images(client.pods()) == {"site/runtime:1"}
        fail_once(client)
        assert images([each for each in client.pods() if "-2-" in each["metadata"]["name"]]) == {
            "site/runtime:2"
        }


def test_without_a_default_image_what_runs_goes_on_and_the_rest_is_told(cluster, client, tmp_path):
    later = JobClient(cluster, client.namespace, "later")
    with running_operator(
        cluster, tmp_path, client.namespace, arguments=("--runtime-image", "cpu=site/runtime:1")
    ):
        client.create({"image": None})
        client.wait_phase("Running")
    with running_operator(cluster, tmp_path, client.namespace, name="without"):
        later.create({"image": None})
        told = later.wait_condition("Accepted", "False")
        assert "--runtime-image cpu=IMAGE" in told["message"]
        client.wait_condition("Accepted", "False")
        assert client.get()["status"]["phase"] == "Running"
        assert images(client.pods()) == {"site/runtime:1"}
