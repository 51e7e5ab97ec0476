"""The objects that are made for a job: what is in them and why it must be."""

import json
import re
from pathlib import Path

import pytest

from rljob_api.pools import MOST_WORKERS, Pool
from rljob_operator.render import JobKey, access_objects, objects
from rljob_operator.render.command import to_yaml
from rljob_operator.render.keys import FOLDER
from rljob_operator.render.names import MAX_CLUSTER_NAME
from rljob_runtime.cluster.settings import read_settings
from tests.support.operator.rendered import (
    ASCEND,
    GROUPS,
    KEY,
    NEW,
    NVIDIA,
    OLD,
    cluster,
    containers,
    environment,
    group,
    pod,
    spec,
)

GOLDEN = Path(__file__).parents[3] / "golden"


def offered(group):
    """What Ray's nodes of a group offer, wherever it is said: by the flag's or the resource's name."""
    start = group["rayStartParams"]
    found = dict(group.get("resources", {}))
    found |= {name: start[flag] for name, flag in (("CPU", "num-cpus"), ("GPU", "num-gpus")) if flag in start}
    return found | {
        name: str(n) for name, n in json.loads(start.get("resources", "''")[1:-1] or "{}").items()
    }


@pytest.mark.parametrize("kuberay", [NEW, OLD])
@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        (
            {},
            [
                {"CPU": "0", "GPU": "0"},
                {"CPU": "0", "GPU": "0", "trainer": "1"},
                {"CPU": "0", "GPU": "0", "fast_rollout": "1"},
                {"CPU": "0", "GPU": "0", "heavy_rollout": "1"},
            ],
        ),
        (
            NVIDIA,
            [
                {"CPU": "0", "GPU": "0"},
                {"CPU": "0", "GPU": "8", "trainer": "8"},
                {"CPU": "0", "GPU": "1", "fast_rollout": "1"},
                {"CPU": "0", "GPU": "4", "heavy_rollout": "1"},
            ],
        ),
        (
            ASCEND,
            [
                {"CPU": "0", "GPU": "0"},
                {"CPU": "0", "GPU": "0", "NPU": "8", "trainer": "8"},
                {"CPU": "0", "GPU": "0", "NPU": "1", "fast_rollout": "1"},
                {"CPU": "0", "GPU": "0", "NPU": "1", "heavy_rollout": "1"},
            ],
        ),
    ],
)
def test_what_ray_nodes_offer(changes, expected, kuberay):
    rendered = cluster(changes, kuberay)
    assert [offered(group(rendered, name)) for name in ["head", *GROUPS]] == expected


@pytest.mark.parametrize(("kuberay", "flags"), [(NEW, set()), (OLD, {"num-cpus", "num-gpus", "resources"})])
def test_ray_resources_stand_in_one_place(kuberay, flags):
    """KubeRay refuses a group that has both; releases before 1.5 drop the groups' `resources`."""
    for each in cluster(NVIDIA, kuberay)["spec"]["workerGroupSpecs"]:
        start = each["rayStartParams"]
        assert start.keys() & {"num-cpus", "num-gpus", "memory", "resources"} == flags
        assert ("resources" in each) != bool(flags)
        assert all(isinstance(value, str) for value in [*start.values(), *each.get("resources", {}).values()])


def test_ray_resources_are_json_for_kuberay_and_one_word_for_the_shell():
    """KubeRay strips the quotes and parses the rest; where that fails it leaves out the GPUs."""
    [text] = {
        group(cluster(NVIDIA, OLD), "trainer")["rayStartParams"]["resources"],
    }
    assert json.loads(text.strip("'\"` ")) == {"trainer": 8}
    assert re.fullmatch(r"'[^']*'", text)


@pytest.mark.parametrize(
    ("changes", "key", "counts"),
    [
        (NVIDIA, "nvidia.com/gpu", [None, "8", "1", "4"]),
        (ASCEND, "huawei.com/Ascend910", [None, "8", "1", "1"]),
        (
            {**NVIDIA, "resourceName": "vendor.example/fast-gpu"},
            "vendor.example/fast-gpu",
            [None, "8", "1", "4"],
        ),
        ({}, "nvidia.com/gpu", [None, None, None, None]),
    ],
)
def test_devices_are_requested_and_limited_alike(changes, key, counts):
    rendered = cluster(changes)
    main = [pod(rendered, name)["containers"][0]["resources"] for name in ["head", *GROUPS]]
    assert [each["requests"].get(key) for each in main] == counts
    assert [each.get("limits", {}).get(key) for each in main] == counts


def test_groups_never_stand_in_the_way_of_the_pools():
    rendered = cluster({"pools.fastRollout": {"replicas": 5, "minReplicas": 5, "maxReplicas": 5}})
    groups = rendered["spec"]["workerGroupSpecs"]
    assert [each["groupName"] for each in groups] == GROUPS
    assert [each["replicas"] for each in groups] == [1, 5, 0]
    assert {(each["minReplicas"], each["maxReplicas"]) for each in groups} == {(0, MOST_WORKERS)}
    [most] = [rule.le for rule in Pool.model_fields["replicas"].metadata if hasattr(rule, "le")]
    assert most == MOST_WORKERS


def test_the_driver_shares_with_ray_what_it_needs_to_find_it():
    rendered = cluster()
    ray, driver = containers(rendered)["ray-head"], containers(rendered)["driver"]
    shared = [{mount["mountPath"]: mount["name"] for mount in each["volumeMounts"]} for each in (ray, driver)]
    assert shared[0] == {"/tmp": "tmp", "/dev/shm": "shared-memory", "/rljob": "storage", FOLDER: "keys"}
    assert shared[0].items() <= shared[1].items()
    assert pod(rendered, "head")["shareProcessNamespace"] is True
    assert driver["image"] == ray["image"] == "rljob/runtime:1"


def test_the_driver_is_told_who_it_is():
    values = environment(containers(cluster(attempt=3))["driver"])
    assert {name: value for name, value in values.items() if name.startswith("RLJOB_")} == {
        "RLJOB_NAME": "math-grpo",
        "RLJOB_NAMESPACE": {"fieldRef": {"fieldPath": "metadata.namespace"}},
        "RLJOB_ATTEMPT": "3",
        "RLJOB_POD": {"fieldRef": {"fieldPath": "metadata.name"}},
        "RLJOB_POD_IP": {"fieldRef": {"fieldPath": "status.podIP"}},
        "RLJOB_RUN_FOLDER": "/rljob/runs/research/math-grpo",
        "RLJOB_KEY_FILE": f"{FOLDER}/wire-key",
        "RLJOB_REWARD_SOCKET": "/var/run/rljob.dev/rewards/host",
        "RLJOB_ALIVE_FILE": "/tmp/rljob-alive",
    }


def test_the_driver_understands_what_it_is_told():
    fields = {"metadata.namespace": "research", "metadata.name": "head-pod", "status.podIP": "10.1.2.3"}
    told = {
        name: value if isinstance(value, str) else fields[value["fieldRef"]["fieldPath"]]
        for name, value in environment(containers(cluster(attempt=3))["driver"]).items()
    }
    settings = read_settings(told)
    assert (settings.identity.namespace, settings.identity.name) == (KEY.namespace, KEY.name)
    assert (settings.attempt, settings.pod_address) == (3, "10.1.2.3")
    assert settings.run_folder == Path("/rljob/runs/research/math-grpo")
    assert settings.key_file == Path(FOLDER) / "wire-key"


def test_every_ray_container_knows_its_pod():
    rendered = cluster()
    for name in ["head", *GROUPS]:
        ray = pod(rendered, name)["containers"][0]
        assert environment(ray)["RLJOB_POD"] == {"fieldRef": {"fieldPath": "metadata.name"}}
        assert ray["name"] == ("ray-head" if name == "head" else "ray-worker")


def test_pods_are_found_by_job_attempt_and_pool():
    rendered = cluster(attempt=2)
    for name, role in zip(["head", *GROUPS], ["head", "trainer", "fastRollout", "heavyRollout"], strict=True):
        labels = group(rendered, name)["template"]["metadata"]["labels"]
        ours = {key: value for key, value in labels.items() if key.startswith("rljob.dev/")}
        assert ours == {"rljob.dev/job": "math-grpo", "rljob.dev/attempt": "2", "rljob.dev/pool": role}
        assert "app.kubernetes.io/name" not in labels  # KubeRay's head service selects by its own value


@pytest.mark.parametrize(("seconds", "expected"), [(0, 30), (300, 300), (3600, 3600)])
def test_the_head_has_as_long_for_its_checkpoint_as_a_suspended_job(seconds, expected):
    rendered = cluster({"runPolicy": {"suspendGraceSeconds": seconds}})
    assert pod(rendered, "head")["terminationGracePeriodSeconds"] == expected
    assert "preStop" in containers(rendered)["ray-head"]["lifecycle"]


def test_trainer_pods_outlive_a_deletion_long_enough_for_a_checkpoint():
    """Ray lets actors go on that long after SIGTERM, and needs some time more to end."""
    rendered = cluster()
    drain = {
        name: int(environment(pod(rendered, name)["containers"][0])["RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S"])
        for name in ["head", *GROUPS]
    }
    assert drain == {"head": 0, "trainer": 30, "fast-rollout": 0, "heavy-rollout": 0}
    for name in GROUPS:
        assert pod(rendered, name)["terminationGracePeriodSeconds"] == drain[name] + 30


def test_only_the_driver_has_a_token():
    rendered = cluster()
    for name in ["head", *GROUPS]:
        assert pod(rendered, name)["automountServiceAccountToken"] is False
        with_token = [
            each["name"]
            for each in pod(rendered, name)["containers"]
            if any(mount["name"] == "driver-token" for mount in each["volumeMounts"])
        ]
        assert with_token == (["driver"] if name == "head" else [])
        assert pod(rendered, name).get("serviceAccountName") == (
            "math-grpo-driver" if name == "head" else None
        )


def test_the_driver_may_read_its_own_job_and_write_its_status():
    account, role, binding, _ = access_objects(KEY, spec())
    assert [account["kind"], account["metadata"]["name"]] == ["ServiceAccount", "math-grpo-driver"]
    assert [(rule["resources"], rule["verbs"], rule["resourceNames"]) for rule in role["rules"]] == [
        (["rljobs"], ["get", "watch"], ["math-grpo"]),
        (["rljobs/status"], ["patch"], ["math-grpo"]),
    ]
    assert binding["subjects"] == [
        {"kind": "ServiceAccount", "name": "math-grpo-driver", "namespace": "research"}
    ]


@pytest.mark.parametrize(("named", "subject"), [("cloud-reader", "cloud-reader"), (None, "default")])
def test_an_account_of_the_users_gets_the_role(named, subject):
    changes = {"pools.head.template": {"spec": {"serviceAccountName": named}}}
    found = access_objects(KEY, spec(changes))
    assert [each["kind"] for each in found] == ["Role", "RoleBinding", "NetworkPolicy"]
    assert found[1]["subjects"][0]["name"] == subject
    assert pod(cluster(changes), "head").get("serviceAccountName") == named


def test_everything_goes_with_the_job():
    owner = {
        "apiVersion": "rljob.dev/v1alpha1",
        "kind": "RLJob",
        "name": KEY.name,
        "uid": KEY.uid,
        "controller": True,
        "blockOwnerDeletion": True,
    }
    for each in objects(KEY, spec(), 1, NEW):
        assert each["metadata"]["ownerReferences"] == [owner]
        assert each["metadata"]["namespace"] == KEY.namespace
        assert each["metadata"]["labels"]["rljob.dev/job"] == KEY.name


@pytest.mark.parametrize(
    ("changes", "labels", "selector"),
    [
        (ASCEND, {}, None),
        ({**ASCEND, "acceleratorType": "module"}, {"ring-controller.atlas": "ascend-910"}, "module"),
        (
            {**ASCEND, "acceleratorType": "module-910b-8"},
            {"ring-controller.atlas": "ascend-910b"},
            "module-910b-8",
        ),
    ],
)
def test_ascend_labels_only_where_the_nodes_are_labelled(changes, labels, selector):
    rendered = cluster(changes)
    found = group(rendered, "trainer")["template"]
    atlas = {k: v for k, v in found["metadata"]["labels"].items() if k.startswith("ring-")}
    assert atlas == labels
    assert found["spec"].get("nodeSelector") == ({"accelerator-type": selector} if selector else None)
    assert [each["key"] for each in found["spec"]["tolerations"]] == ["huawei.com/Ascend910"]
    assert "tolerations" not in pod(rendered, "head")


def test_the_head_sees_no_gpu_of_its_machine():
    rendered = cluster(NVIDIA)
    for each in containers(rendered).values():
        assert environment(each)["NVIDIA_VISIBLE_DEVICES"] == "void"
    assert "NVIDIA_VISIBLE_DEVICES" not in environment(containers(rendered, "trainer")["ray-worker"])


def test_torch_loads_nothing_for_npus_where_there_are_none():
    rendered = cluster({"accelerator": "ascend"})
    for each in containers(rendered).values():
        assert environment(each)["TORCH_DEVICE_BACKEND_AUTOLOAD"] == "0"
    assert "TORCH_DEVICE_BACKEND_AUTOLOAD" not in environment(containers(rendered, "trainer")["ray-worker"])


def test_containers_of_a_template_are_restricted_too():
    added = {
        "containers": [{"name": "log", "image": "b"}],
        "initContainers": [{"name": "fetch", "image": "c"}],
    }
    rendered = cluster({"pools.trainer.template": {"spec": added}})
    trainer = pod(rendered, "trainer")
    restricted = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
    assert [each["name"] for each in trainer["containers"]] == ["ray-worker", "log"]
    assert trainer["containers"][1] == {"name": "log", "image": "b", "securityContext": restricted}
    assert trainer["initContainers"] == [{"name": "fetch", "image": "c", "securityContext": restricted}]


@pytest.mark.parametrize(
    ("changes", "images"),
    [
        ({}, ["rljob/runtime:1", "rljob/runtime:1", "rljob/runtime:1"]),
        ({"ray-head": "a"}, ["a", "rljob/runtime:1", "rljob/runtime:1"]),
        ({"image": None, "ray-head": "a"}, ["a", "a", "a"]),
        ({"image": None, "ray-head": "a", "driver": "b"}, ["a", "b", "b"]),
        ({"image": None, "ray-head": "a", "driver": "b", "rewards": "c"}, ["a", "b", "c"]),
        ({"rewards": "c"}, ["rljob/runtime:1", "rljob/runtime:1", "c"]),
    ],
)
def test_images_of_the_head(changes, images):
    named = [{"name": name, "image": image} for name, image in changes.items() if name != "image"]
    top = {"image": None} if "image" in changes else {}
    rendered = cluster({**top, "pools.head.template": {"spec": {"containers": named}}})
    assert [each["image"] for each in pod(rendered, "head")["containers"]] == images


@pytest.mark.parametrize(
    ("name", "attempt"), [("a", 1), ("a" * 40, 10**9), ("a-1", 1), ("x" + "-" * 38 + "y", 2)]
)
def test_cluster_names_fit_kuberay(name, attempt):
    found = JobKey("n", name, "u").cluster(attempt)
    assert found == f"{name}-{attempt}"
    assert len(found) <= MAX_CLUSTER_NAME


@pytest.mark.parametrize(("name", "attempt"), [("a" * 52, 1), ("1a", 1), ("A", 1), ("a.b", 1)])
def test_other_cluster_names_are_refused(name, attempt):
    with pytest.raises(ValueError, match="at most 53 lower-case letters"):
        JobKey("n", name, "u").cluster(attempt)


TYPICAL = {
    **NVIDIA,
    "storage.volume": {"persistentVolumeClaim": {"claimName": "runs"}},
    "pools.trainer.resources": {"requests": {"cpu": 32}, "limits": {"memory": "512Gi"}},
    "pools.trainer.template": {
        "spec": {
            "nodeSelector": {"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3"},
            "containers": [{"name": "ray-worker", "env": [{"name": "NCCL_DEBUG", "value": "WARN"}]}],
        }
    },
}


@pytest.mark.parametrize(
    ("name", "changes", "kuberay"),
    [
        ("nvidia-kuberay-1.6.2", TYPICAL, NEW),
        ("ascend-kuberay-1.4.2", {**ASCEND, "acceleratorType": "module"}, OLD),
    ],
)
def test_the_objects_as_a_whole(name, changes, kuberay):
    """Read the difference; if it is wanted, write what was rendered (in the failure) to the file."""
    rendered = to_yaml(objects(KEY, spec(changes), 1, kuberay))
    path = GOLDEN / f"render-{name}.yaml"
    assert rendered == path.read_text(), f"{path} is not what is rendered:\n{rendered}"


@pytest.mark.parametrize("accelerators", [1, 8])
def test_a_trainer_pod_starts_its_ranks_at_once(accelerators):
    """Ray starts as many processes at a time as a node has CPUs, and ours offer none."""
    pools = {name: {"acceleratorsPerWorker": accelerators} for name in ("trainer", "fastRollout")}
    rendered = cluster(NVIDIA | {"pools": pools})
    found = {
        name: environment(pod(rendered, name)["containers"][0]).get("RAY_worker_maximum_startup_concurrency")
        for name in ("trainer", "fast-rollout")
    }
    assert found == {"trainer": str(accelerators), "fast-rollout": None}
