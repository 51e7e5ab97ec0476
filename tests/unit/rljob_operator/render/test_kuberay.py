"""What a cluster's KubeRay understands."""

import pytest

from rljob_operator.render import KubeRay, UnsupportedKubeRay
from rljob_operator.render.quantities import amount


@pytest.mark.parametrize(
    ("version", "group_resources"),
    [
        ("1.4.0", False),
        ("1.4.2", False),
        ("1.5.0", True),
        ("v1.6.2", True),
        ("1.10.0", True),
        ("2.0.0-rc.1", True),
    ],
)
def test_by_version(version, group_resources):
    assert KubeRay.of_version(version) == KubeRay(group_resources)


@pytest.mark.parametrize("version", ["1.3.2", "0.6.0"])
def test_too_old(version):
    with pytest.raises(UnsupportedKubeRay, match=f"KubeRay {version} is too old: RLJobs need 1.4 or newer"):
        KubeRay.of_version(version)


@pytest.mark.parametrize("version", ["", "nightly", "1", "1.4x"])
def test_no_version(version):
    with pytest.raises(UnsupportedKubeRay, match="is not a version of KubeRay"):
        KubeRay.of_version(version)


def openapi(kind="RayCluster", group=("template", "scaleStrategy")):
    items = {"type": "object", "properties": {name: {} for name in group}}
    spec = {"properties": {"workerGroupSpecs": {"type": "array", "items": items}}}
    gvk = [{"group": "ray.io", "version": "v1", "kind": kind}]
    schema = {"properties": {"spec": spec}, "x-kubernetes-group-version-kind": gvk}
    return {"components": {"schemas": {"io.k8s.Other": {}, f"io.ray.v1.{kind}": schema}}}


def test_by_schema():
    assert KubeRay.of_schema(openapi()) == KubeRay(group_resources=False)
    assert KubeRay.of_schema(openapi(group=("template", "scaleStrategy", "resources"))) == KubeRay(True)


@pytest.mark.parametrize("served", [{}, openapi(kind="RayJob"), openapi(group=("template",))])
def test_schema_without_worker_groups(served):
    with pytest.raises(UnsupportedKubeRay, match="install KubeRay"):
        KubeRay.of_schema(served)


@pytest.mark.parametrize(
    ("less", "more"),
    [
        ("500m", "1"),
        ("0.5", "501m"),
        ("1G", "1Gi"),
        ("1023Mi", "1Gi"),
        ("999k", "1M"),
        ("1", "1Ki"),
        ("4T", "4Ti"),
    ],
)
def test_amounts_compare(less, more):
    assert amount(less) < amount(more)


@pytest.mark.parametrize(
    ("one", "other"), [("1000m", "1"), ("1024Mi", "1Gi"), ("0.5Gi", "512Mi"), ("1k", "1000")]
)
def test_equal_amounts(one, other):
    assert amount(one) == amount(other)
