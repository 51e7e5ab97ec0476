"""The KubeRay operator as a process of this machine, in any version of `families.KUBERAY_VERSIONS`."""

from pathlib import Path

from tools.cluster.api import Api
from tools.cluster.binaries import manifests, program
from tools.cluster.control_plane import answers
from tools.cluster.custom_resources import apply_definitions, wait_until_served
from tools.cluster.families import kuberay
from tools.cluster.ports import Ports
from tools.cluster.processes import Process

WITHOUT_CLIENT_LIMITS = {"1.4.2"}
"""Versions that have no flags for the limits of their client: they send 20 requests a second at most."""


class KubeRay:
    """One KubeRay operator that watches all namespaces; the version may change from start to start.

    `version` is the one whose definitions the cluster has, None without any.
    """

    def __init__(
        self,
        folder: Path,
        ports: Ports,
        kubeconfig: Path,
        api: Api,
        version: str | None,
        real_pods: bool = False,
    ):
        self._kubeconfig, self._api = kubeconfig, api
        self._metrics, self._probes = ports.take(), ports.take()
        self.version = version
        self.process = Process(
            "kuberay",
            [],
            folder / "kuberay.log",
            answers(f"http://127.0.0.1:{self._probes}/healthz"),
            # Fake pods run no init container that could wait for a head.
            {} if real_pods else {"ENABLE_INIT_CONTAINER_INJECTION": "false"},
        )

    def start(self, version: str) -> None:
        """Applies the version's resource definitions and starts its operator. ValueError, ProcessFailed."""
        family = kuberay(version)
        self.process.arguments = [
            str(program(family, "kuberay")),
            f"--kubeconfig={self._kubeconfig}",
            f"--metrics-addr=127.0.0.1:{self._metrics}",
            f"--health-probe-bind-address=127.0.0.1:{self._probes}",
            "--enable-leader-election=false",
            "--reconcile-concurrency=4",
        ]
        if version not in WITHOUT_CLIENT_LIMITS:
            self.process.arguments += ["--qps=200", "--burst=400"]
        definitions = manifests(family, "crds")
        if version == self.version:
            # The cluster's data have them from the beginning (`seed`), or from the start before.
            wait_until_served(self._api, definitions)
        else:
            apply_definitions(self._api, definitions)
        self.version = version
        self.process.start()
