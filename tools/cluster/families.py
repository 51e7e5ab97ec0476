"""What the local Kubernetes is built from: one Go module under modules/ for each family of programs.

A family has one module of its own, so that one's choice of library versions does not drag another's. Versions
stand in those modules' go.mod and nowhere else. One more program is a line in its family's table, and
`go get -tool` of its package in the family's module.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

MODULES = Path(__file__).parent / "modules"


@dataclass(frozen=True)
class Manifests:
    """YAML files that a Go module carries: `patterns` below the module's root, kept in the folder `name`."""

    name: str
    patterns: tuple[str, ...]


@dataclass(frozen=True)
class Family:
    """Programs that are built in one Go module.

    `programs` maps a program's name to its Go package. Each is built when it is first asked for.
    """

    name: str
    module_folder: str
    source: str
    """The Go module whose version is the family's version."""
    programs: Mapping[str, str]
    manifests: tuple[Manifests, ...] = ()
    stamps: Mapping[str, str] = field(default_factory=dict)
    """String variables set at link time; {version}, {major} and {minor} are filled in."""
    own_version: str = ""
    """The version of a program whose source lies in the module's folder itself; empty for all others."""

    @property
    def folder(self) -> Path:
        return MODULES / self.module_folder

    @property
    def version(self) -> str:
        """`own_version`, or that in go.mod, without its v. ValueError if go.mod does not require `source`."""
        if self.own_version:
            return self.own_version
        go_mod = self.folder / "go.mod"
        required = re.compile(rf"^(?:require)?\s*{re.escape(self.source)} v(\S+)", re.MULTILINE)
        found = required.search(go_mod.read_text())
        if not found:
            raise ValueError(f"{go_mod} does not require {self.source}: add it with `go get -tool`")
        return found[1]

    @property
    def linker_flags(self) -> str:
        """The value of -ldflags: no symbol tables (half the size), and `stamps`."""
        major, minor, *_ = self.version.split(".")
        values = {"version": self.version, "major": major, "minor": minor}
        return " ".join(
            ["-s -w", *(f"-X {name}={text.format(**values)}" for name, text in self.stamps.items())]
        )


def _kuberay(version: str) -> Family:
    source = "github.com/ray-project/kuberay/ray-operator"
    crds = Manifests("crds", ("config/crd/bases/*.yaml",))
    return Family("kuberay", f"kuberay-{version}", source, {"kuberay": source}, (crds,))


KUBE = Family(
    "kube",
    "kube",
    "k8s.io/kubernetes",
    {
        "kube-apiserver": "k8s.io/kubernetes/cmd/kube-apiserver",
        "kube-controller-manager": "k8s.io/kubernetes/cmd/kube-controller-manager",
        "kube-scheduler": "k8s.io/kubernetes/cmd/kube-scheduler",
        "kubectl": "k8s.io/kubernetes/cmd/kubectl",
        "kubelet": "k8s.io/kubernetes/cmd/kubelet",
        "kube-proxy": "k8s.io/kubernetes/cmd/kube-proxy",
    },
    # Without these a client sees version v0.0.0-master, and version checks (Helm's, kubectl's) fail.
    stamps={
        "k8s.io/component-base/version.gitVersion": "v{version}",
        "k8s.io/component-base/version.gitMajor": "{major}",
        "k8s.io/component-base/version.gitMinor": "{minor}",
        "k8s.io/component-base/version.gitTreeState": "clean",
    },
)
ETCD = Family("etcd", "etcd", "go.etcd.io/etcd/server/v3", {"etcd": "go.etcd.io/etcd/server/v3"})
KWOK = Family(
    "kwok",
    "kwok",
    "sigs.k8s.io/kwok",
    {"kwok": "sigs.k8s.io/kwok/cmd/kwok"},
    (
        Manifests(
            "stages",
            (
                "kustomize/stage/pod/fast/pod-*.yaml",
                "kustomize/stage/node/fast/node-*.yaml",
                "kustomize/stage/node/heartbeat-with-lease/node-*.yaml",
            ),
        ),
    ),
)
COREDNS = Family(
    "coredns", "coredns", "github.com/coredns/coredns", {"coredns": "github.com/coredns/coredns"}
)
HELM = Family(
    "helm",
    "helm",
    "helm.sh/helm/v3",
    {"helm": "helm.sh/helm/v3/cmd/helm"},
    # Without the last two, `helm template` takes the cluster for a Kubernetes 1.20.
    stamps={
        "helm.sh/helm/v3/internal/version.version": "v{version}",
        "helm.sh/helm/v3/pkg/chartutil.k8sVersionMajor": "1",
        "helm.sh/helm/v3/pkg/chartutil.k8sVersionMinor": "34",
    },
)
PAUSE = Family("pause", "pause", "rljob.dev/tools/cluster/pause", {"pause": "."}, own_version="1.0.0")
KUBERAY_VERSIONS = ("1.6.2", "1.5.1", "1.4.2")
"""Newest first; the first is the default."""

FAMILIES = (KUBE, ETCD, KWOK, COREDNS, HELM, PAUSE, *map(_kuberay, KUBERAY_VERSIONS))
CONTROL_PLANE = (
    (KUBE, ("kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubectl")),
    (ETCD, ("etcd",)),
)
"""What every cluster needs; a KubeRay and nodes come on top."""
FAKE_NODES = ((KWOK, ("kwok",)),)
"""What a cluster with fake nodes needs besides."""
NODE = (
    (KUBE, ("kubelet", "kube-proxy")),
    (COREDNS, ("coredns",)),
    (HELM, ("helm",)),
    (PAUSE, ("pause",)),
)
"""What a cluster with a real node needs besides."""


def kuberay(version: str) -> Family:
    """The family of a version of KubeRay. ValueError for one that is not in `KUBERAY_VERSIONS`."""
    if version not in KUBERAY_VERSIONS:
        raise ValueError(f"no KubeRay {version} here: choose one of {', '.join(KUBERAY_VERSIONS)}")
    return _kuberay(version)
