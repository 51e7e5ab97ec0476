"""A real node: containerd, kubelet, kube-proxy and CoreDNS in Linux namespaces of their own.

Guarantees: nothing of it outlives the process that started it, whatever ends that one: processes, mounts,
network interfaces and packet filter rules are in namespaces that the kernel takes away. What stays is the
image store, which the next node finds again, and empty control groups, which it removes. Needs root, Linux,
and the programs of `packages`.
"""

import fcntl
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import IO

from tools.cluster import cgroups, node_config
from tools.cluster.api import Object, holds
from tools.cluster.binaries import program
from tools.cluster.control_plane import ControlPlane, answers
from tools.cluster.families import COREDNS, KUBE
from tools.cluster.node_config import NODE_NAME, Link
from tools.cluster.node_shell import NAMESPACES, STORE_VARIABLE, NodeShell, image_store
from tools.cluster.packages import SYSTEM_PATH
from tools.cluster.pause import IMAGE as PAUSE_IMAGE
from tools.cluster.pause import pause_archive
from tools.cluster.processes import Process, ProcessFailed

READY_SECONDS = 300.0


class StoreInUse(ProcessFailed):
    """Another node has the image store."""


class Node:
    """A node of the cluster that `plane` makes; `folder` is the cluster's, `link` its own.

    `shell` does things on it; `components` are its processes in the order in which they start.
    """

    def __init__(self, folder: Path, link: Link) -> None:
        self.folder, self.link = folder, link
        self.shell = NodeShell(folder)
        self._store_lock: IO[str] | None = None
        self.namespaces = Process("node", [], folder / "node.log", self.shell.pid_file.exists)
        self.containerd = self._inside("containerd", self._listens)
        self.kubelet = self._inside("kubelet", self._answers(node_config.KUBELET_HEALTH, "healthz"))
        self.kube_proxy = self._inside("kube-proxy", self._answers(node_config.PROXY_HEALTH, "healthz"))
        self.coredns = self._inside("coredns", self._answers(node_config.DNS_HEALTH, "health"))
        self.components = [
            self.namespaces,
            self.containerd,
            self.coredns,
            self.kubelet,
            self.kube_proxy,
        ]

    def plug_in(self) -> None:
        """Makes the node's namespaces and the link to them, on which the API server then can listen.

        ProcessFailed; StoreInUse if another node runs.
        """
        self._take_store()
        cgroups.remove_unused()
        # Its presence is what tells that the namespaces are ready.
        self.shell.pid_file.unlink(missing_ok=True)
        self.namespaces.arguments = [
            sys.executable,
            "-I",
            "-S",
            str(NAMESPACES),
            "new",
            str(self.shell.pid_file),
        ]
        self.namespaces.start()
        self._connect()

    def start(self, plane: ControlPlane) -> None:
        """Joins the cluster of a control plane that runs, and returns when pods can run. ProcessFailed."""
        self._write_configuration(plane)
        self.containerd.start()
        self._forget_containers()
        self.shell.drop_unnamed_images()
        self.shell.load(pause_archive(), PAUSE_IMAGE)
        for path, document in node_config.dns_objects(self.link).items():
            plane.api.apply(path, document)
        self.coredns.launch()
        self.kubelet.start()
        self.kube_proxy.launch()  # it waits half a minute for a node that is not there yet
        for process in (self.coredns, self.kube_proxy):
            process.wait_ready()
        plane.api.wait("/api/v1/nodes", _takes_pods, f"{NODE_NAME} ready", seconds=READY_SECONDS)

    def unplug(self) -> None:
        """Removes what is left of the node. Its processes must have ended."""
        cgroups.remove(self.link.interface)
        if self._store_lock:
            self._store_lock.close()
            self._store_lock = None

    def _inside(self, name: str, ready: Callable[[], bool]) -> Process:
        """A process of the node; it gets its arguments when the node's namespaces are there."""
        return Process(name, [], self.folder / f"{name}.log", ready, {"PATH": SYSTEM_PATH})

    def _answers(self, port: int, path: str) -> Callable[[], bool]:
        return answers(f"http://{self.link.node}:{port}/{path}")

    def _listens(self) -> bool:
        """Whether containerd takes connections."""
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(f"/proc/{self.shell.pid}/root{node_config.CONTAINERD_SOCKET}")
        return True

    def _take_store(self) -> None:
        store = image_store()
        store.mkdir(parents=True, exist_ok=True)
        lock = (store / ".lock").open("w")
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            lock.close()
            raise StoreInUse(
                f"a node runs already with the images in {store}: end its cluster (`make cluster-down`), "
                f"or let {STORE_VARIABLE} name another folder"
            ) from None
        self._store_lock = lock

    def _forget_containers(self) -> None:
        """Removes what containerd has noted of an earlier node's containers, which ended with that node. It
        reads its notes only when it starts, and so is started again."""
        if old := self.shell.ctr("containers", "ls", "-q").split():
            self.shell.ctr("containers", "rm", *old)
            self.containerd.stop()
            self.containerd.start()

    def _connect(self) -> None:
        """Joins the machine and the node by a virtual cable, one end of which is the node's eth0."""
        link, ip = self.link, shutil.which("ip", path=SYSTEM_PATH) or "ip"
        ends = ["type", "veth", "peer", "name", "eth0", "netns", str(self.shell.pid)]
        for arguments in (
            ["link", "add", link.interface, *ends],
            ["address", "add", f"{link.machine}/30", "dev", link.interface],
            ["link", "set", link.interface, "up"],
        ):
            subprocess.run([ip, *arguments], check=True, capture_output=True, timeout=30)
        for arguments in (
            ["address", "add", f"{link.node}/30", "dev", "eth0"],
            ["link", "set", "lo", "up"],
            ["link", "set", "eth0", "up"],
        ):
            self.shell.run("ip", *arguments)
        # Pods reach each other's services through the bridge only if bridged packets pass the filter.
        for setting in ("net/ipv4/ip_forward", "net/bridge/bridge-nf-call-iptables"):
            self.shell.run("sh", "-c", f"test ! -e /proc/sys/{setting} || echo 1 > /proc/sys/{setting}")

    def _write_configuration(self, plane: ControlPlane) -> None:
        folder, link = self.folder, self.link
        plugins = folder / "cni"
        plugins.mkdir()
        (plugins / "pods.conflist").write_text(node_config.pod_network())
        store = image_store() / "containerd"
        cgroup = cgroups.make(link.interface)
        files = {
            "containerd.toml": node_config.containerd(store, plugins),
            "kubelet.yaml": node_config.kubelet(folder, link, plane.kubelet_clients, cgroup),
            "kube-proxy.yaml": node_config.kube_proxy(link, plane.kubeconfig_of("kube-proxy")),
            "Corefile": node_config.coredns(link, plane.kubeconfig_of("coredns")),
        }
        for name, text in files.items():
            (folder / name).write_text(text)
        commands: dict[Process, list[str]] = {
            self.containerd: ["containerd", f"--config={folder / 'containerd.toml'}"],
            self.kubelet: [
                str(program(KUBE, "kubelet")),
                f"--config={folder / 'kubelet.yaml'}",
                f"--kubeconfig={plane.kubeconfig_of('kubelet')}",
                f"--hostname-override={NODE_NAME}",
                f"--node-ip={link.node}",
                f"--root-dir={folder / 'kubelet'}",
                f"--cert-dir={folder / 'kubelet-certificates'}",
            ],
            self.kube_proxy: [str(program(KUBE, "kube-proxy")), f"--config={folder / 'kube-proxy.yaml'}"],
            self.coredns: [str(program(COREDNS, "coredns")), f"-conf={folder / 'Corefile'}"],
        }
        for process, command in commands.items():
            process.arguments = self.shell.entering(command)


def _takes_pods(nodes: list[Object]) -> bool:
    return any(holds(node, "Ready") and not node["spec"].get("taints") for node in nodes)
