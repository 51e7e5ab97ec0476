"""Every pod of a job keeps the rules that clusters and scanners hold pods to."""

import pytest

from rljob_operator.render import objects
from tests.support.operator.pod_rules import HARDENED, RESTRICTED, broken
from tests.support.operator.rendered import ASCEND, GROUPS, KEY, NEW, NVIDIA, OLD, cluster, pod, spec

PODS = ["head", *GROUPS]
JOBS = {"cpu": {}, "nvidia": NVIDIA, "ascend": {**ASCEND, "acceleratorType": "module"}}
CLAIM = {"persistentVolumeClaim": {"claimName": "runs"}}
TEMPLATES = {
    "nothing": {},
    "scheduling": {
        "spec": {
            "priorityClassName": "high",
            "tolerations": [{"operator": "Exists"}],
            "nodeSelector": {"a": "b"},
        }
    },
    "openshift": {"spec": {"securityContext": {"runAsUser": None, "runAsGroup": None, "fsGroup": None}}},
    "claims": {"spec": {"volumes": [{"name": "models", **CLAIM}]}},
    "account": {"spec": {"serviceAccountName": "mine"}},
}
"""What people write that takes nothing away."""
ADDED = {
    "spec": {
        "containers": [{"name": "log", "image": "b"}],
        "initContainers": [{"name": "fetch", "image": "c"}],
    }
}


def job_of(accelerator, template, **more):
    pools = ("head", "trainer", "fastRollout", "heavyRollout")
    return {**JOBS[accelerator], **{f"pools.{name}.template": template for name in pools}, **more}


@pytest.mark.parametrize("kuberay", [NEW, OLD], ids=["new", "old"])
@pytest.mark.parametrize("template", TEMPLATES)
@pytest.mark.parametrize("accelerator", JOBS)
def test_every_pod_keeps_every_rule(accelerator, template, kuberay):
    rendered = cluster(job_of(accelerator, TEMPLATES[template], **{"storage.volume": CLAIM}), kuberay)
    found = {name: broken(pod(rendered, name), RESTRICTED | HARDENED) for name in PODS}
    assert found == {name: {} for name in PODS}


@pytest.mark.parametrize("accelerator", JOBS)
def test_containers_that_a_template_adds_keep_the_standard(accelerator):
    rendered = cluster(job_of(accelerator, ADDED))
    for name in PODS:
        names = {
            each["name"]
            for each in (*pod(rendered, name)["containers"], *pod(rendered, name)["initContainers"])
        }
        assert {"log", "fetch"} < names
        assert broken(pod(rendered, name), RESTRICTED) == {}


def container(**settings):
    return {"spec": {"containers": [{"name": "ray-worker", **settings}]}}


@pytest.mark.parametrize(
    ("template", "storage", "expected"),
    [
        ({}, {"hostPath": {"path": "/data"}}, {"volume_types": ["storage"]}),
        ({"spec": {"hostIPC": True}}, {}, {"host_namespaces": ["hostIPC"]}),
        ({"spec": {"securityContext": {"runAsNonRoot": False}}}, {}, {"root": ["ray-worker"]}),
        ({"spec": {"securityContext": {"runAsUser": 0}}}, {}, {"root": ["ray-worker"]}),
        ({"spec": {"securityContext": {"seccompProfile": None}}}, {}, {"seccomp": ["ray-worker"]}),
        (container(securityContext={"privileged": True}), {}, {"privileged": ["ray-worker"]}),
        (
            container(securityContext={"capabilities": {"add": ["IPC_LOCK"]}}),
            {},
            {"capabilities": ["ray-worker"]},
        ),
        (
            container(securityContext={"allowPrivilegeEscalation": True}),
            {},
            {"escalation": ["ray-worker"]},
        ),
        (container(ports=[{"containerPort": 1, "hostPort": 1}]), {}, {"host_ports": ["ray-worker"]}),
        (
            container(securityContext={"readOnlyRootFilesystem": False}),
            {},
            {"writable_root": ["ray-worker"]},
        ),
        (
            container(env=[{"name": "A", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}}]),
            {},
            {"secrets_in_environment": ["ray-worker"]},
        ),
        ({"spec": {"automountServiceAccountToken": True}}, {}, {"account_token": ["the default mount"]}),
        ({"spec": {"enableServiceLinks": True}}, {}, {"service_links": ["enableServiceLinks"]}),
    ],
)
def test_what_a_user_asks_for_is_the_users(template, storage, expected):
    """A rule that finds nothing here would find nothing anywhere."""
    rendered = cluster({"pools.trainer.template": template, "storage.volume": storage})
    assert broken(pod(rendered, "trainer"), RESTRICTED | HARDENED) == expected


def test_more_memory_without_a_limit_is_the_users():
    rendered = cluster({"pools.trainer.resources": {"requests": {"memory": "1Ti"}}})
    assert broken(pod(rendered, "trainer"), RESTRICTED | HARDENED) == {
        "no_memory_limit": ["ray-worker"],
        "unbounded_shared_memory": ["shared-memory"],
    }


def test_the_driver_may_do_nothing_beyond_its_own_job():
    for each in objects(KEY, spec(), 1, NEW):
        for rule in each.get("rules", ()):
            assert rule["resourceNames"] == [KEY.name]
            assert {*rule["verbs"], *rule["resources"]}.isdisjoint(
                {"*", "create", "delete", "list", "secrets"}
            )
