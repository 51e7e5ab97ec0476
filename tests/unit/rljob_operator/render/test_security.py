"""Every pod of a job keeps the rules that clusters and scanners hold pods to."""

import json

import pytest

from rljob_operator.render import objects
from tests.support.operator.pod_rules import HARDENED, RESTRICTED, broken
from tests.support.operator.rendered import (
    ASCEND,
    GROUPS,
    KEY,
    NEW,
    NVIDIA,
    OLD,
    cluster,
    containers,
    pod,
    spec,
)

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


SECRETS = {
    # pod: the volumes with secrets that each of its containers mounts
    "head": {"ray-head": {"keys"}, "driver": {"keys", "driver-token"}, "rewards": set()},
    **{name: {"ray-worker": {"keys"}} for name in GROUPS},
}


@pytest.mark.parametrize("kuberay", [NEW, OLD], ids=["new", "old"])
@pytest.mark.parametrize("accelerator", JOBS)
def test_what_each_container_has_of_secrets(accelerator, kuberay):
    """A loss of the job's own runs in the trainer's pods: it has the job's keys there, and no token."""
    rendered = cluster(job_of(accelerator, TEMPLATES["account"], **{"storage.volume": CLAIM}), kuberay)
    assert {name: mounted_secrets(rendered, name) for name in PODS} == SECRETS


def mounted_secrets(rendered, name):
    """By container of a pod, names of the volumes that it mounts and that hold a Secret or a token."""
    volumes = pod(rendered, name)["volumes"]
    secret = {each["name"] for each in volumes if {"secret", "projected"} & each.keys()}
    found = containers(rendered, name).items()
    return {called: secret & {mount["name"] for mount in each["volumeMounts"]} for called, each in found}


@pytest.mark.parametrize("kuberay", [NEW, OLD], ids=["new", "old"])
@pytest.mark.parametrize("accelerator", JOBS)
def test_no_rank_of_the_trainer_runs_in_the_head_pod(accelerator, kuberay):
    """Ranks and engines ask Ray for units of their pool, and the head offers none."""
    rendered = cluster(job_of(accelerator, {}, **{"storage.volume": CLAIM}), kuberay)
    assert offered(rendered["spec"]["headGroupSpec"]) == {}
    assert [offered(each).keys() & set(UNITS) for each in rendered["spec"]["workerGroupSpecs"]] == [
        {unit} for unit in UNITS
    ]


UNITS = ("trainer", "fast_rollout", "heavy_rollout")


def offered(group):
    """What Ray may place actors by on the pods of a group."""
    old = json.loads(group["rayStartParams"].get("resources", "'{}'").strip("'"))
    found = {"CPU": group["rayStartParams"].get("num-cpus", 0), **old, **group.get("resources", {})}
    return {name: number for name, number in found.items() if float(number) > 0}
