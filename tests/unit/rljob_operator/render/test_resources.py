"""What pods ask of Kubernetes, and how large their shared memory is."""

from pathlib import Path

import pytest

from rljob_api import RLJob
from rljob_operator.render import ray_cluster
from rljob_operator.render.images import with_runtime_image
from rljob_operator.render.quantities import amount
from rljob_runtime.manifest.source import parse
from tests.support.operator.rendered import GROUPS, KEY, NEW, NVIDIA, cluster, containers, volume

ROOT = Path(__file__).parents[4]


@pytest.mark.parametrize(
    ("asked", "requests", "limits"),
    [
        ({}, {"cpu": "400m", "memory": "1Gi"}, {"memory": "8Gi"}),
        ({"requests": {"cpu": "500m"}}, {"cpu": "500m", "memory": "1Gi"}, {"memory": "8Gi"}),
        ({"limits": {"cpu": 2}}, {"memory": "1Gi"}, {"cpu": "2", "memory": "8Gi"}),
        ({"requests": {"memory": "64Gi"}}, {"cpu": "400m", "memory": "64Gi"}, {}),
        ({"limits": {"memory": "512Mi"}}, {"cpu": "400m"}, {"memory": "512Mi"}),
        (
            {"requests": {"rdma/hca": 1}, "limits": {"memory": "8Gi", "hugepages-2Mi": "64Mi"}},
            {"rdma/hca": "1", "cpu": "400m", "hugepages-2Mi": "64Mi"},
            {"memory": "8Gi", "hugepages-2Mi": "64Mi", "rdma/hca": "1"},
        ),
    ],
)
def test_resources_of_a_worker(asked, requests, limits):
    rendered = cluster({"pools.trainer": {"cpusPerWorker": 4, "resources": asked}})
    found = containers(rendered, "trainer")["ray-worker"]["resources"]
    assert (found["requests"], found.get("limits", {})) == (requests, limits)


def test_workers_with_accelerators_get_whole_cpus_and_memory_for_each_device():
    rendered = cluster({**NVIDIA, "pools.trainer.cpusPerWorker": 16})
    [worker] = containers(rendered, "trainer").values()
    assert worker["resources"] == {
        "requests": {"cpu": "16", "memory": "1Gi", "nvidia.com/gpu": "8"},
        "limits": {"memory": "2048Gi", "nvidia.com/gpu": "8"},
    }


@pytest.mark.parametrize(
    ("said", "requests", "limits"),
    [
        ({}, {"cpu": "50m", "memory": "768Mi"}, {"memory": "16Gi"}),
        ({"requests": {"memory": "32Gi"}}, {"cpu": "50m", "memory": "32Gi"}, {}),
        ({"limits": {"memory": "512Mi"}}, {"cpu": "50m"}, {"memory": "512Mi"}),
        ({"requests": {"cpu": 4}}, {"cpu": 4, "memory": "768Mi"}, {"memory": "16Gi"}),
    ],
)
def test_resources_of_the_driver(said, requests, limits):
    """Its template says them; a default limit below a request would be refused by Kubernetes."""
    template = {"spec": {"containers": [{"name": "driver", "resources": said}]}}
    found = containers(cluster({"pools.head.template": template}))["driver"]["resources"]
    assert (found["requests"], found.get("limits", {})) == (requests, limits)


def test_the_head_of_a_job_with_accelerators_asks_for_more():
    asked = [each["resources"]["requests"]["cpu"] for each in containers(cluster(NVIDIA)).values()]
    assert asked == ["250m", "250m", "250m"]


def test_the_example_fits_twice_on_a_small_node():
    """Two CPUs and 16 GiB, of which the operator, the cluster's own pods and the kubelet have a part."""
    manifest = parse((ROOT / "examples" / "copy.yaml").read_text()).value
    rendered = ray_cluster(KEY, with_runtime_image(RLJob.model_validate(manifest).spec, {"cpu": "a"}), 1, NEW)
    asked = [
        each["resources"]["requests"]
        for name in ["head", *GROUPS]
        for each in containers(rendered, name).values()
    ]
    assert len(asked) == 6
    assert 2 * sum(amount(each["cpu"]) for each in asked) <= amount("1")
    assert 2 * sum(amount(each["memory"]) for each in asked) <= amount("10Gi")


@pytest.mark.parametrize(
    ("pool", "size"),
    [
        ({}, "8Gi"),
        ({"resources": {"limits": {"memory": "2Gi"}}}, "2Gi"),
        ({"resources": {"requests": {"memory": "2Gi"}}}, None),
        ({"sharedMemory": "1Gi"}, "1Gi"),
        ({"sharedMemory": "1Gi", "resources": {"limits": {"memory": "2Gi"}}}, "1Gi"),
        ({"sharedMemory": "64Gi", "resources": {"requests": {"memory": "2Gi"}}}, "64Gi"),
    ],
)
def test_size_of_shared_memory(pool, size):
    rendered = cluster({"pools.trainer": pool})
    found = volume(rendered, "trainer", "shared-memory")["emptyDir"]
    assert found == {"medium": "Memory"} | ({"sizeLimit": size} if size else {})
    assert volume(rendered, "fast-rollout", "shared-memory")["emptyDir"]["sizeLimit"] == "8Gi"
    assert volume(rendered, "head", "shared-memory")["emptyDir"]["sizeLimit"] == "4Gi"
