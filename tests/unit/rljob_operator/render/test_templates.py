"""What people say about their pods comes out in them: templates and storage, in every pool."""

import pytest

from rljob_operator.render import refusals
from tests.support.operator.rendered import ASCEND, GROUPS, NVIDIA, cluster, pod, spec

PODS = dict(zip(["head", *GROUPS], ["head", "trainer", "fastRollout", "heavyRollout"], strict=True))
JOBS = {"cpu": {}, "nvidia": NVIDIA, "ascend": ASCEND}
SPOT = {"key": "spot", "operator": "Exists", "effect": "NoSchedule"}
CLAIM = {"persistentVolumeClaim": {"claimName": "runs"}}
AFFINITY = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [{"topologyKey": "zone"}]}}
FIELDS = {
    "imagePullSecrets": [{"name": "registry"}],
    "serviceAccountName": "cloud-reader",
    "priorityClassName": "training",
    "preemptionPolicy": "Never",
    "schedulerName": "volcano",
    "runtimeClassName": "nvidia",
    "nodeSelector": {"gpu": "h100"},
    "affinity": AFFINITY,
    "topologySpreadConstraints": [
        {"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule"}
    ],
    "dnsConfig": {"nameservers": ["10.0.0.10"]},
    "hostAliases": [{"ip": "10.0.0.9", "hostnames": ["store"]}],
}
"""Fields of a pod that come out as they are said."""


@pytest.mark.parametrize("field", FIELDS)
@pytest.mark.parametrize("accelerator", JOBS)
def test_fields_of_a_pod_come_out_as_they_are_said(accelerator, field):
    template = {"spec": {field: FIELDS[field]}}
    changes = {**JOBS[accelerator], **{f"pools.{pool}.template": template for pool in PODS.values()}}
    assert refusals(spec(changes)) == []
    rendered = cluster(changes)
    for name in PODS:
        assert pod(rendered, name)[field] == FIELDS[field]


@pytest.mark.parametrize("accelerator", JOBS)
def test_tolerations_are_added_to_those_for_the_devices(accelerator):
    plain = cluster(JOBS[accelerator])
    rendered = cluster({**JOBS[accelerator], "pools.trainer.template": {"spec": {"tolerations": [SPOT]}}})
    assert pod(rendered, "trainer")["tolerations"] == [*pod(plain, "trainer").get("tolerations", []), SPOT]
    assert pod(rendered, "fast-rollout") == pod(plain, "fast-rollout")


@pytest.mark.parametrize("pool", PODS)
def test_a_template_is_of_its_own_pool(pool):
    rendered = cluster({f"pools.{PODS[pool]}.template": {"spec": {"priorityClassName": "high"}}})
    assert [name for name in PODS if "priorityClassName" in pod(rendered, name)] == [pool]


@pytest.mark.parametrize(
    "source",
    [
        CLAIM,
        {"hostPath": {"path": "/data", "type": "Directory"}},
        {"nfs": {"server": "store", "path": "/runs"}},
        {"ephemeral": {"volumeClaimTemplate": {"spec": {"accessModes": ["ReadWriteOnce"]}}}},
        {"csi": {"driver": "csi.example", "volumeAttributes": {"a": "b"}}},
    ],
    ids=lambda source: next(iter(source)),
)
def test_the_run_folder_is_on_the_volume_of_the_users_choice(source):
    rendered = cluster({"storage": {"volume": source, "mountPath": "/work"}})
    for name in PODS:
        assert [each for each in pod(rendered, name)["volumes"] if each["name"] == "storage"] == [
            {"name": "storage", **source}
        ]
        for each in pod(rendered, name)["containers"]:
            mount = {"name": "storage", "mountPath": "/work"}
            # The reward function reads, and writes nothing there.
            assert (mount | {"readOnly": True} if each["name"] == "rewards" else mount) in each[
                "volumeMounts"
            ]
            assert each["workingDir"] == "/work"


def test_a_claim_with_a_model_is_mounted_beside_ours():
    mount = {"name": "models", "mountPath": "/models", "readOnly": True}
    volume = {"name": "models", "persistentVolumeClaim": {"claimName": "models"}}
    template = {
        "spec": {"volumes": [volume], "containers": [{"name": "ray-worker", "volumeMounts": [mount]}]}
    }
    rendered, plain = cluster({"pools.trainer.template": template}), cluster()
    found, before = pod(rendered, "trainer"), pod(plain, "trainer")
    assert found["volumes"] == [*before["volumes"], volume]
    assert found["containers"][0]["volumeMounts"] == [*before["containers"][0]["volumeMounts"], mount]
