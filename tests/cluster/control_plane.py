"""etcd, kube-apiserver, kube-controller-manager and kube-scheduler as processes of this machine.

All listen on the loopback address alone. Access needs a token: RBAC decides, and the one token that is made
here belongs to system:masters. Nothing survives a power failure, since etcd does not wait for the disk.
"""

import secrets
import shutil
import ssl
import urllib.request
from collections.abc import Callable
from pathlib import Path

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from tests.cluster import kubeconfig
from tests.cluster.api import Api, ApiError
from tests.cluster.binaries import program
from tests.cluster.families import ETCD, KUBE
from tests.cluster.ports import Ports
from tests.cluster.processes import Process

AUDIT_POLICY = """\
apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules: [{level: Metadata}]
"""
CLIENT_LIMITS = ("--kube-api-qps=500", "--kube-api-burst=1000")
"""Of controller-manager and scheduler. Their defaults, 20 and 50 a second, are slow for thousands of pods."""


class ControlPlane:
    """The processes of a control plane in `folder`, which must exist; nothing runs until they are started.

    `seed` is an etcd data folder to start from. With `audit` each request is a line of JSON in `audit_log`.
    """

    def __init__(
        self,
        folder: Path,
        ports: Ports,
        *,
        seed: Path | None = None,
        audit: bool = False,
        priority_and_fairness: bool = True,
    ):
        self.folder, self.kubeconfig = folder, folder / "kubeconfig"
        self.audit_log = folder / "audit.log"
        self._ports, self._authority = ports, folder / "certificates" / "apiserver.crt"
        self.url = f"https://127.0.0.1:{ports.take()}"
        self.token = secrets.token_hex(32)
        self.api = Api(self.url, self.token, self._authority)
        self._etcd_url = f"http://127.0.0.1:{ports.take()}"
        kubeconfig.private_file(folder / "tokens.csv", f"{self.token},admin,admin,system:masters\n")
        _new_service_account_keys(folder / "sa.key", folder / "sa.pub")
        if seed:
            shutil.copytree(seed, folder / "etcd")
        self.etcd = self._new_etcd()
        self.apiserver = self._new_apiserver(audit, priority_and_fairness)
        self.controller_manager = self._new_controller_manager()
        self.scheduler = self._new_scheduler()

    def start(self) -> None:
        """Starts etcd and the API server and writes the administrator's kubeconfig. ProcessFailed."""
        self.etcd.launch()
        self.apiserver.launch()  # it tries until etcd answers
        self.etcd.wait_ready()
        self.apiserver.wait_ready()
        kubeconfig.write(self.kubeconfig, self.url, self.authority, self.token)

    @property
    def authority(self) -> str:
        """The PEM certificate that the API server is checked by."""
        return self._authority.read_text()

    def _new_etcd(self) -> Process:
        peer = f"http://127.0.0.1:{self._ports.take()}"
        return Process(
            "etcd",
            [
                str(program(ETCD, "etcd")),
                f"--data-dir={self.folder / 'etcd'}",
                f"--listen-client-urls={self._etcd_url}",
                f"--advertise-client-urls={self._etcd_url}",
                f"--listen-peer-urls={peer}",
                f"--initial-advertise-peer-urls={peer}",
                f"--initial-cluster=default={peer}",
                "--unsafe-no-fsync",
                "--log-level=warn",
            ],
            self.folder / "etcd.log",
            answers(f"{self._etcd_url}/health"),
        )

    def _new_apiserver(self, audit: bool, priority_and_fairness: bool) -> Process:
        arguments = [
            str(program(KUBE, "kube-apiserver")),
            f"--etcd-servers={self._etcd_url}",
            f"--cert-dir={self._authority.parent}",
            "--bind-address=127.0.0.1",
            # No pod here can reach the server, so that the service `kubernetes` gets no endpoint.
            "--advertise-address=127.0.0.1",
            "--endpoint-reconciler-type=none",
            f"--secure-port={self.url.rpartition(':')[2]}",
            f"--service-account-key-file={self.folder / 'sa.pub'}",
            f"--service-account-signing-key-file={self.folder / 'sa.key'}",
            "--service-account-issuer=https://kubernetes.default.svc",
            f"--token-auth-file={self.folder / 'tokens.csv'}",
            "--authorization-mode=RBAC",
            "--allow-privileged=true",
            "--service-cluster-ip-range=10.96.0.0/16",
            f"--enable-priority-and-fairness={str(priority_and_fairness).lower()}",
        ]
        if audit:
            policy = self.folder / "audit-policy.yaml"
            policy.write_text(AUDIT_POLICY)
            arguments += [f"--audit-policy-file={policy}", f"--audit-log-path={self.audit_log}"]
            arguments += ["--audit-log-maxsize=100000"]  # MB: no second file
        return Process(
            "kube-apiserver",
            arguments,
            self.folder / "kube-apiserver.log",
            self._apiserver_ready,
            # KubeRay's definitions take 6 CPU seconds to serve, a third of them collecting garbage.
            {"GOGC": "200"},
            # Told to end, it would wait up to a minute for its clients' watches.
            stop_seconds=1.0,
        )

    def _apiserver_ready(self) -> bool:
        try:
            return bool(self.api.request("GET", "/readyz", seconds=5) == "ok")
        except ApiError:  # it answers already, and says what is not ready
            return False

    def _new_controller_manager(self) -> Process:
        port = self._ports.take()
        return Process(
            "kube-controller-manager",
            [
                str(program(KUBE, "kube-controller-manager")),
                f"--kubeconfig={self.kubeconfig}",
                "--bind-address=127.0.0.1",
                f"--secure-port={port}",
                f"--service-account-private-key-file={self.folder / 'sa.key'}",
                f"--root-ca-file={self._authority}",
                "--leader-elect=false",
                # A busy machine may not keep fake nodes' heartbeats within the default of 50 s.
                "--node-monitor-grace-period=180s",
                *CLIENT_LIMITS,
            ],
            self.folder / "kube-controller-manager.log",
            answers(f"https://127.0.0.1:{port}/healthz"),
        )

    def _new_scheduler(self) -> Process:
        port = self._ports.take()
        return Process(
            "kube-scheduler",
            [
                str(program(KUBE, "kube-scheduler")),
                f"--kubeconfig={self.kubeconfig}",
                "--bind-address=127.0.0.1",
                f"--secure-port={port}",
                "--leader-elect=false",
                *CLIENT_LIMITS,
            ],
            self.folder / "kube-scheduler.log",
            answers(f"https://127.0.0.1:{port}/healthz"),
        )


def answers(url: str) -> Callable[[], bool]:
    """A check whether a health endpoint of this machine answers 200. No secret goes to it."""
    tls = ssl._create_unverified_context() if url.startswith("https:") else None
    handlers = [urllib.request.ProxyHandler({}), *([urllib.request.HTTPSHandler(context=tls)] if tls else [])]
    opener = urllib.request.build_opener(*handlers)

    def check() -> bool:
        with opener.open(url, timeout=5) as answer:
            return bool(answer.status == 200)

    return check


def _new_service_account_keys(private: Path, public: Path) -> None:
    key = ec.generate_private_key(ec.SECP256R1())
    secret = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.TraditionalOpenSSL,
        serialization.NoEncryption(),
    )
    kubeconfig.private_file(private, secret.decode())
    shown = key.public_key().public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    public.write_bytes(shown)
