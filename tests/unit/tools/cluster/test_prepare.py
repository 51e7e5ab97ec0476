"""What is built for a cluster."""

import pytest

from tools.cluster import CannotBuild, prepare
from tools.cluster.families import KUBERAY_VERSIONS
from tools.cluster.prepare import families_of

EVERY = {"kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubectl", "etcd", "kuberay"}


@pytest.mark.parametrize(
    ("node", "more"),
    [(False, {"kwok"}), (True, {"kubelet", "kube-proxy", "coredns", "helm", "pause"})],
    ids=["fake nodes", "a real node"],
)
def test_only_what_the_nodes_need_is_built(node, more):
    found = families_of(KUBERAY_VERSIONS[:1], node)
    assert {name for _, names in found for name in names} == EVERY | more


def test_how_many_are_built_is_told_first(tmp_path, monkeypatch):
    monkeypatch.setenv("RLJOB_CLUSTER_CACHE", str(tmp_path))
    monkeypatch.setenv("PATH", "")
    told: list[str] = []
    with pytest.raises(CannotBuild, match=r"the go command is not on PATH"):
        prepare(KUBERAY_VERSIONS[:1], told.append)
    [first] = told
    assert first.startswith(f"7 programs are built from source, once: they are kept in {tmp_path}")
