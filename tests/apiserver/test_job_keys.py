"""The keys of a job, and the image of jobs that name none: made by a real operator on a real API server."""

import base64
import re

import pytest

from tests.support.operator.operator_site import Desk, as_operator, running_operator
from tools.cluster.api import Object

RESTRICTED = {"metadata": {"labels": {"pod-security.kubernetes.io/enforce": "restricted"}}}


@pytest.fixture
def desk(cluster, namespace):
    return Desk(cluster, namespace)


def secrets_of(desk: Desk) -> list[Object]:
    label = {"labelSelector": f"rljob.dev/job={desk.name}"}
    return desk.cluster.api.items(f"/api/v1/namespaces/{desk.namespace}/secrets", label)


def values(secret: Object) -> dict[str, str]:
    return {name: base64.b64decode(value).decode() for name, value in secret["data"].items()}


def fail_once(desk: Desk) -> None:
    """The attempt fails; the next one runs."""
    desk.end_driver(1, "lost")
    desk.wait_phase("Running", attempt=2, seconds=120)


def images(pods: list[Object]) -> set[str]:
    return {each["image"] for pod in pods for each in pod["spec"]["containers"]}


def everything(desk: Desk) -> str:
    """All objects of the namespace but Secrets, as one text."""
    kinds = "rljobs,rayclusters,pods,services,events,configmaps,serviceaccounts,roles,networkpolicies"
    return desk.cluster.kubectl("get", kinds, "-n", desk.namespace, "-o", "yaml", "--show-managed-fields")


def test_keys_are_made_once_and_are_nowhere_else(cluster, desk, tmp_path):
    cluster.api.request("PATCH", f"/api/v1/namespaces/{desk.namespace}", RESTRICTED)
    account = as_operator(cluster, desk.namespace)
    with running_operator(cluster, tmp_path, desk.namespace, kubeconfig=account) as operator:
        desk.create()
        desk.wait_phase("Running")
        [secret] = secrets_of(desk)
        assert sorted(values(secret)) == ["ray-token", "wire-key"]
        assert all(re.fullmatch("[0-9a-f]{64}", each) for each in values(secret).values())
        assert len(set(values(secret).values())) == 2
        assert secret["immutable"] is True
        assert [each["name"] for each in secret["metadata"]["ownerReferences"]] == [desk.name]

        operator.process.stop(kill=True)
        operator.process.start()
        fail_once(desk)
        assert secrets_of(desk) == [secret]

        told = everything(desk) + operator.process.log.read_text()
        assert secret["metadata"]["name"] in told
        assert [name for name, value in values(secret).items() if value in told] == []
        assert [name for name, value in secret["data"].items() if value in told] == []

        cluster.api.request("DELETE", f"{desk.jobs}/{desk.name}")
        desk.wait_gone()
        desk.create()
        desk.wait_phase("Running")
        [anew] = secrets_of(desk)
        assert set(values(anew).values()).isdisjoint(values(secret).values())
    user = f"system:serviceaccount:{desk.namespace}:the-operator"
    asked = {
        event["verb"]
        for event in cluster.audit_events()
        if event["user"]["username"] == user and event.get("objectRef", {}).get("resource") == "secrets"
    }
    assert asked == {"create"}


def test_jobs_do_not_share_keys(cluster, desk, tmp_path):
    other = Desk(cluster, desk.namespace, "other")
    with running_operator(cluster, tmp_path, desk.namespace):
        for each in (desk, other):
            each.create()
        for each in (desk, other):
            each.wait_phase("Running")
        [one], [another] = secrets_of(desk), secrets_of(other)
        assert set(values(one).values()).isdisjoint(values(another).values())


def test_another_default_image_holds_from_the_next_attempt(cluster, desk, tmp_path):
    first, second = ("--runtime-image", "cpu=site/runtime:1"), ("--runtime-image", "cpu=site/runtime:2")
    with running_operator(cluster, tmp_path, desk.namespace, arguments=first):
        desk.create({"image": None})
        desk.wait_phase("Running")
        assert images(desk.pods()) == {"site/runtime:1"}
    with running_operator(cluster, tmp_path, desk.namespace, arguments=second, name="upgraded"):
        desk.scale(2)
        desk.wait_pods(lambda pods: len(pods) == 4, "a pod more")
        assert images(desk.pods()) == {"site/runtime:1"}
        fail_once(desk)
        assert images([each for each in desk.pods() if "-2-" in each["metadata"]["name"]]) == {
            "site/runtime:2"
        }


def test_without_a_default_image_what_runs_goes_on_and_the_rest_is_told(cluster, desk, tmp_path):
    later = Desk(cluster, desk.namespace, "later")
    with running_operator(
        cluster, tmp_path, desk.namespace, arguments=("--runtime-image", "cpu=site/runtime:1")
    ):
        desk.create({"image": None})
        desk.wait_phase("Running")
    with running_operator(cluster, tmp_path, desk.namespace, name="without"):
        later.create({"image": None})
        told = later.wait_condition("Accepted", "False")
        assert "--runtime-image cpu=IMAGE" in told["message"]
        desk.wait_condition("Accepted", "False")
        assert desk.get()["status"]["phase"] == "Running"
        assert images(desk.pods()) == {"site/runtime:1"}
