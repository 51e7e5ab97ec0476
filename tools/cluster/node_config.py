"""The configuration files of a node's programs. Pure."""

import json
from dataclasses import dataclass
from ipaddress import IPv4Address
from pathlib import Path
from typing import Any

from tools.cluster.packages import CNI_FOLDER
from tools.cluster.pause import IMAGE as PAUSE_IMAGE

POD_NETWORK = "10.244.0.0/24"
SERVICE_NETWORK = "10.96.0.0/16"
DNS_SERVICE = "10.96.0.10"
CONTAINERD_SOCKET = "/run/containerd/containerd.sock"
"""In the node's namespaces, as all of /run."""
UNUSED_PLUGINS = [
    *(f"io.containerd.snapshotter.v1.{name}" for name in ("btrfs", "zfs", "aufs", "devmapper")),
    "io.containerd.tracing.processor.v1.otlp",
]
NODE_NAME = "rljob-node"
KUBELET_HEALTH, PROXY_HEALTH, DNS_HEALTH = 10248, 10256, 10254
FIRST_ADDRESS = IPv4Address("198.18.0.0")
"""The first of the network 198.18.0.0/15, which is reserved for tests of network devices (RFC 2544)."""


@dataclass(frozen=True)
class Link:
    """The cable between the machine and the node of number 0 to 9,999: a network of two addresses."""

    number: int

    @property
    def interface(self) -> str:
        """The machine's end."""
        return f"rljob{self.number}"

    @property
    def machine(self) -> str:
        return str(FIRST_ADDRESS + 4 * self.number + 1)

    @property
    def node(self) -> str:
        return str(FIRST_ADDRESS + 4 * self.number + 2)


def containerd(store: Path, plugins: Path) -> str:
    """TOML. `store` keeps images and container file systems."""
    return f"""\
version = 2
root = "{store}"
state = "/run/containerd"
disabled_plugins = {json.dumps(UNUSED_PLUGINS)}
[grpc]
address = "{CONTAINERD_SOCKET}"
[plugins."io.containerd.internal.v1.opt"]
path = "/run/containerd-opt"
[plugins."io.containerd.grpc.v1.cri"]
# The machine may lack CAP_SYS_RESOURCE, without which no process gets a lower score than its parent.
restrict_oom_score_adj = true
sandbox_image = "{PAUSE_IMAGE}"
[plugins."io.containerd.grpc.v1.cri".cni]
bin_dir = "{CNI_FOLDER}"
conf_dir = "{plugins}"
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
runtime_type = "io.containerd.runc.v2"
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
BinaryName = "runc"
SystemdCgroup = false
"""


def pod_network() -> str:
    """A CNI configuration list: one bridge that has all pods."""
    bridge = {
        "type": "bridge",
        "bridge": "pods0",
        "isGateway": True,
        "ipMasq": True,
        "hairpinMode": True,
        "ipam": {
            "type": "host-local",
            "dataDir": "/run/pod-addresses",
            "ranges": [[{"subnet": POD_NETWORK}]],
            "routes": [{"dst": "0.0.0.0/0"}],
        },
    }
    ports = {"type": "portmap", "capabilities": {"portMappings": True}}
    return json.dumps({"cniVersion": "0.4.0", "name": "pods", "plugins": [bridge, ports]})


def kubelet(folder: Path, link: Link, clients: Path, cgroup: str) -> str:
    """A KubeletConfiguration. `clients`: the certificate of those whose clients may ask the kubelet."""
    return _document(
        "kubelet.config.k8s.io/v1beta1",
        "KubeletConfiguration",
        {
            "address": link.node,
            "healthzBindAddress": link.node,
            "healthzPort": KUBELET_HEALTH,
            "authentication": {
                "anonymous": {"enabled": False},
                "webhook": {"enabled": True},
                "x509": {"clientCAFile": str(clients)},
            },
            "authorization": {"mode": "Webhook"},
            "containerRuntimeEndpoint": f"unix://{CONTAINERD_SOCKET}",
            "podLogsDir": str(folder / "pod-logs"),
            "clusterDNS": [DNS_SERVICE],
            "clusterDomain": "cluster.local",
            # None: pods ask the cluster's name server alone.
            "resolvConf": "",
            # Of its own, so that it does not take another kubelet's pods on this machine for orphans.
            "cgroupRoot": cgroup,
            "cgroupDriver": "cgroupfs",
            "failCgroupV1": False,
            "failSwapOn": False,
            # A machine that lacks some of root's capabilities, as virtual ones do.
            "featureGates": {"KubeletInUserNamespace": True},
            "localStorageCapacityIsolation": False,
            # Images cannot be fetched again, however full the disk is; and no pod goes for it.
            "imageGCHighThresholdPercent": 100,
            "evictionHard": {"memory.available": "100Mi"},
            "maxPods": 60,
        },
    )


def kube_proxy(link: Link, kubeconfig: Path) -> str:
    """A KubeProxyConfiguration."""
    return _document(
        "kubeproxy.config.k8s.io/v1alpha1",
        "KubeProxyConfiguration",
        {
            "mode": "iptables",
            "bindAddress": link.node,
            "healthzBindAddress": f"{link.node}:{PROXY_HEALTH}",
            "metricsBindAddress": "127.0.0.1:10249",
            "hostnameOverride": NODE_NAME,
            "clusterCIDR": POD_NETWORK,
            "clientConnection": {"kubeconfig": str(kubeconfig)},
            # The machine's own limits stay.
            "conntrack": {
                "maxPerCore": 0,
                "min": 0,
                "tcpEstablishedTimeout": "0s",
                "tcpCloseWaitTimeout": "0s",
            },
        },
    )


def coredns(link: Link, kubeconfig: Path) -> str:
    """A Corefile that answers names of the cluster, and no others."""
    return f"""\
.:53 {{
    bind {link.node}
    errors
    health {link.node}:{DNS_HEALTH}
    kubernetes cluster.local in-addr.arpa {{
        kubeconfig {kubeconfig}
        pods insecure
        ttl 5
    }}
}}
"""


def dns_objects(link: Link) -> dict[str, dict[str, Any]]:
    """By path in the API: the service of the name server, which is no pod, and what that may read."""
    port = {"name": "dns", "port": 53, "protocol": "UDP"}
    ports = [port, {"name": "dns-tcp", "port": 53, "protocol": "TCP"}]
    reader = "rljob-coredns"
    rbac = "/apis/rbac.authorization.k8s.io/v1"
    return {
        "/api/v1/namespaces/kube-system/services/kube-dns": {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": {"name": "kube-dns"},
            "spec": {"clusterIP": DNS_SERVICE, "ports": ports},
        },
        "/apis/discovery.k8s.io/v1/namespaces/kube-system/endpointslices/kube-dns": {
            "apiVersion": "discovery.k8s.io/v1",
            "kind": "EndpointSlice",
            "metadata": {"name": "kube-dns", "labels": {"kubernetes.io/service-name": "kube-dns"}},
            "addressType": "IPv4",
            "endpoints": [{"addresses": [link.node], "conditions": {"ready": True}}],
            "ports": ports,
        },
        f"{rbac}/clusterroles/{reader}": {
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "ClusterRole",
            "metadata": {"name": reader},
            "rules": [
                {"apiGroups": [""], "resources": ["services", "namespaces"], "verbs": ["list", "watch"]},
                {
                    "apiGroups": ["discovery.k8s.io"],
                    "resources": ["endpointslices"],
                    "verbs": ["list", "watch"],
                },
            ],
        },
        f"{rbac}/clusterrolebindings/{reader}": {
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "ClusterRoleBinding",
            "metadata": {"name": reader},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": reader},
            "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": reader}],
        },
    }


def _document(version: str, kind: str, content: dict[str, Any]) -> str:
    """JSON, which is YAML too."""
    return json.dumps({"apiVersion": version, "kind": kind, **content}, indent=1)
