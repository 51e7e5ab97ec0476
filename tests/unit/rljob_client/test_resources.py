"""Paths of objects."""

import pytest

from rljob_client.resources import LEASES, PODS, RAY_CLUSTERS, Resource, resource_of

NODES = Resource("", "v1", "Node", "nodes", namespaced=False)


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        (PODS.path(), "/api/v1/pods"),
        (PODS.path("team"), "/api/v1/namespaces/team/pods"),
        (PODS.path("team", "a"), "/api/v1/namespaces/team/pods/a"),
        (RAY_CLUSTERS.path("team", "a", "status"), "/apis/ray.io/v1/namespaces/team/rayclusters/a/status"),
        (NODES.path(name="n"), "/api/v1/nodes/n"),
        (PODS.path("../kube-system", "a?b"), "/api/v1/namespaces/..%2Fkube-system/pods/a%3Fb"),
    ],
)
def test_paths(path, expected):
    assert path == expected


def test_scope_is_held():
    with pytest.raises(ValueError, match="Pod 'a': a namespace is needed"):
        PODS.path(name="a")
    with pytest.raises(ValueError, match="Node is cluster-scoped"):
        NODES.path("team", "a")


def test_manifests_have_their_resource():
    assert resource_of({"apiVersion": "coordination.k8s.io/v1", "kind": "Lease"}) is LEASES
    with pytest.raises(ValueError, match=r"Node \(v1\) is none of the types that the operator writes"):
        resource_of({"apiVersion": "v1", "kind": "Node"})
