"""A whole Kubernetes cluster on this machine that a test starts, breaks, repairs and stops.

It has its own folder and ports, so that several can run side by side. Its processes end with the process that
started them, whatever ends that one.
"""

import json
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tools.cluster import kubeconfig, ports
from tools.cluster.api import WAIT_SECONDS, Api, Object
from tools.cluster.binaries import program
from tools.cluster.control_plane import ControlPlane
from tools.cluster.custom_resources import apply_definitions
from tools.cluster.families import KUBE, KUBERAY_VERSIONS
from tools.cluster.kuberay import KubeRay
from tools.cluster.kwok import add_nodes, kwok_process
from tools.cluster.node import Node
from tools.cluster.node_config import Link
from tools.cluster.ports import Ports
from tools.cluster.processes import Process
from tools.cluster.seed import seed

RLJOB_DEFINITION = Path(__file__).parents[2] / "crds" / "rljobs.rljob.dev.yaml"
NODES = {"nvidia.com/gpu": 4, "huawei.com/Ascend910": 2}


class Cluster:
    """Control plane, KubeRay, and KWOK with fake nodes; the RLJob definition is applied.

    `folder` gets logs, keys and the kubeconfig; without one, a temporary folder that goes with the cluster.
    `kuberay`: a version, or None for no KubeRay. `nodes`: how many fake nodes with 8 of each extended
    resource; an empty mapping: no KWOK either. `node`: this machine is a real node, on which pods run (needs
    root); then there are no fake ones, which would get its pods. `audit`: each request is written to a log
    (`audit_events`). `owner_permissions`: who sets an owner of an object needs the right to delete it, as on
    OpenShift.
    """

    def __init__(
        self,
        folder: Path | None = None,
        *,
        kuberay: str | None = KUBERAY_VERSIONS[0],
        nodes: Mapping[str, int] = NODES,
        node: bool = False,
        scheduler: bool = True,
        audit: bool = False,
        priority_and_fairness: bool = True,
        owner_permissions: bool = False,
    ):
        if node and nodes:
            raise ValueError("a cluster has fake nodes or a real one: the scheduler does not tell them apart")
        self._temporary = None if folder else tempfile.TemporaryDirectory(prefix="rljob-cluster-")
        self.folder = folder or Path(self._temporary.name if self._temporary else "")
        self._ports = Ports()
        self.node = Node(self.folder, Link(self._ports.take() - ports.FIRST)) if node else None
        """The real node; None in a cluster with fake ones."""
        plane = ControlPlane(
            self.folder,
            self._ports,
            seed=seed(kuberay) if kuberay else None,
            audit=audit,
            priority_and_fairness=priority_and_fairness,
            owner_permissions=owner_permissions,
            link=self.node.link if self.node else None,
        )
        self._plane = plane
        self._kuberay = KubeRay(
            self.folder, self._ports, plane.kubeconfig, plane.api, kuberay, real_pods=node
        )
        self._kuberay_version, self._nodes = kuberay, dict(nodes)
        # The controller-manager comes last: its garbage collector looks for new resources only every 30 s.
        order = [
            # A node's namespaces come first: the API server listens on the link to them.
            *(self.node.components[:1] if self.node else []),
            plane.etcd,
            plane.apiserver,
            *([plane.scheduler] if scheduler else []),
            *([kwok_process(self.folder, self._ports, plane.kubeconfig)] if nodes else []),
            self._kuberay.process,
            plane.controller_manager,
            *(self.node.components[1:] if self.node else []),
        ]
        self.components = {process.name: process for process in order}
        """By name, in the order in which they start; stopped in the opposite one."""
        self.timings: dict[str, float] = {}
        """Seconds that each part of the start took."""
        plane.api.check = self.check

    @property
    def api(self) -> Api:
        """Requests as the administrator."""
        return self._plane.api

    @property
    def kubeconfig(self) -> Path:
        """The administrator's kubeconfig, mode 0600."""
        return self._plane.kubeconfig

    @property
    def kubectl_path(self) -> Path:
        return program(KUBE, "kubectl")

    @property
    def kuberay_version(self) -> str | None:
        """The version that runs; None while none does."""
        return self._kuberay.version if self._kuberay.process.wanted else None

    def start(self) -> None:
        """Starts everything. ProcessFailed (with a log's end), ApiError, TimeoutError: then nothing runs."""
        try:
            self._start()
        except BaseException:
            self.stop()
            raise

    def _start(self) -> None:
        if self.node:
            with self._measured("namespaces"):
                self.node.plug_in()
        with self._measured("API server"):
            self._plane.start()
        with self._measured("RLJob definition"):
            apply_definitions(self.api, [RLJOB_DEFINITION])
        if self._kuberay_version:
            with self._measured("KubeRay"):
                self._kuberay.start(self._kuberay_version)
        with self._measured("controllers"):
            of_node = self.node.components if self.node else []
            # All are launched before one is waited for: they start side by side.
            rest = [each for each in self._but_kuberay() if not each.wanted and each not in of_node]
            for process in rest:
                process.launch()
            for process in rest:
                process.wait_ready()
        with self._measured("nodes"):
            for resource, count in self._nodes.items():
                self.add_nodes(resource, count)
            if self.node:
                self.node.start(self._plane)

    def stop(self) -> None:
        """Ends all processes, each one before what it depends on, and removes the temporary folder."""
        for process in reversed(self.components.values()):
            process.stop()
        if self.node:
            self.node.unplug()
        self._ports.give_back()
        if self._temporary:
            self._temporary.cleanup()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def check(self) -> None:
        """ProcessFailed if a component ended that was not told to."""
        for process in self.components.values():
            process.check()

    def stop_component(self, name: str, *, kill: bool = False) -> None:
        """Ends one of `components`; with `kill` without a chance to say good-bye."""
        self._component(name).stop(kill)

    def start_component(self, name: str) -> None:
        """Starts a component again, at the same address. ProcessFailed."""
        if name == self._kuberay.process.name:
            self.start_kuberay()
        else:
            self._component(name).start()

    def restart_apiserver(self, *, kill: bool = False) -> None:
        """Ends the API server and starts it again at the same address."""
        self.stop_component("kube-apiserver", kill=kill)
        self.start_component("kube-apiserver")

    def stop_kuberay(self, *, kill: bool = False) -> None:
        self.stop_component("kuberay", kill=kill)

    def start_kuberay(self, version: str | None = None) -> None:
        """Makes KubeRay run in `version`, or in the cluster's own. ValueError, ProcessFailed, ApiError."""
        wanted = version or self._kuberay_version
        if wanted is None:
            raise ValueError("this cluster has no KubeRay version of its own: name one")
        self._kuberay.process.check()
        if self.kuberay_version != wanted:
            self.stop_kuberay()
            self._kuberay.start(wanted)

    def repair(self) -> None:
        """Starts each component that was stopped. ProcessFailed for one that ended by itself."""
        self.check()
        for process in self._but_kuberay():
            if not process.wanted:
                process.start()
        if self._kuberay_version and not self._kuberay.process.wanted:
            self.start_kuberay(self._kuberay.version)

    def add_nodes(self, resource: str, count: int) -> list[str]:
        """`count` more fake nodes with 8 of the extended resource each, ready; their names."""
        return add_nodes(self.api, resource, count)

    def wait(
        self,
        path: str,
        done: Callable[[list[Object]], bool],
        what: str,
        *,
        seconds: float = WAIT_SECONDS,
        **query: str,
    ) -> list[Object]:
        """`Api.wait`: watches a collection until `done(objects)`. TimeoutError, ProcessFailed."""
        return self.api.wait(path, done, what, seconds=seconds, query=query)

    def kubectl(self, *arguments: str, stdin: str | None = None, seconds: float = WAIT_SECONDS) -> str:
        """The output of kubectl as administrator. CalledProcessError, with kubectl's own text as a note."""
        # What a server has is kept by its address, which another cluster had before.
        own = [f"--kubeconfig={self.kubeconfig}", f"--cache-dir={self.folder / 'kubectl-cache'}"]
        command = [str(self.kubectl_path), *own, *arguments]
        try:
            return subprocess.run(
                command, input=stdin, capture_output=True, text=True, timeout=seconds, check=True
            ).stdout
        except subprocess.CalledProcessError as error:
            error.add_note(error.stderr)
            raise

    def kubeconfig_of(self, namespace: str, service_account: str) -> Path:
        """A kubeconfig that acts as a service account, with a token of one hour. ApiError."""
        path = f"/api/v1/namespaces/{namespace}/serviceaccounts/{service_account}/token"
        token = self.api.request("POST", path, {"spec": {"expirationSeconds": 3600}})["status"]["token"]
        file = self.folder / f"kubeconfig-{namespace}-{service_account}"
        return kubeconfig.write(file, self._plane.url, self._plane.authority, token, namespace)

    def audit_events(self, user: str | None = None) -> list[dict[str, Any]]:
        """All requests so far, or those of one user, oldest first: audit.k8s.io/v1 Events. An answer may come
        a moment before its Event. FileNotFoundError without `audit`."""
        # What is behind the last line's end is being written.
        whole = self._plane.audit_log.read_text().rpartition("\n")[0]
        events = [json.loads(line) for line in whole.splitlines()]
        # A request whose token is wrong has no user's name.
        return [each for each in events if user is None or each["user"].get("username") == user]

    def _but_kuberay(self) -> list[Process]:
        """The components that start without being told a version."""
        return [each for each in self.components.values() if each is not self._kuberay.process]

    def _component(self, name: str) -> Process:
        if name not in self.components:
            raise ValueError(f"no component {name}: there are {', '.join(self.components)}")
        return self.components[name]

    @contextmanager
    def _measured(self, part: str) -> Iterator[None]:
        started = time.monotonic()
        yield
        self.timings[part] = time.monotonic() - started
