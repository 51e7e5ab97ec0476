"""etcd, kube-apiserver, kube-controller-manager and kube-scheduler as processes of this machine.

All listen on the loopback address alone; only the API server of a cluster with a node listens on the address
at which pods reach this machine. Access needs a token: RBAC decides. The administrator's belongs to
system:masters, and each program of a node has one of its own. Nothing survives a power failure, since etcd
does not wait for the disk.
"""

import secrets
import shutil
import ssl
import urllib.request
from collections.abc import Callable
from pathlib import Path

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from tools.cluster import kubeconfig
from tools.cluster.api import Api, ApiError
from tools.cluster.binaries import program
from tools.cluster.client_certificate import write_client_certificate
from tools.cluster.families import ETCD, KUBE
from tools.cluster.node_config import NODE_NAME, SERVICE_NETWORK, Link
from tools.cluster.ports import Ports
from tools.cluster.processes import Process

AUDIT_POLICY = """\
apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules: [{level: Metadata}]
"""
NODE_USERS = {
    "kubelet": f'system:node:{NODE_NAME},kubelet,"system:nodes"',
    "kube-proxy": "system:kube-proxy,kube-proxy",
    "coredns": "rljob-coredns,coredns",
}
"""By program: user, uid and groups, as in a token file. Kubernetes itself has roles for the first two."""
WITHOUT_NODE = (
    "--authorization-mode=RBAC",
    # No pod can reach the server, so that the service `kubernetes` gets no endpoint.
    "--endpoint-reconciler-type=none",
)
CLIENT_LIMITS = ("--kube-api-qps=500", "--kube-api-burst=1000")
"""Requests a second, and at once, of controller-manager and scheduler. Their defaults, 20 and 50 a second,
are slow for thousands of pods."""


class ControlPlane:
    """The processes of a control plane in `folder`, which must exist; nothing runs until they are started.

    `seed` is an etcd data folder to start from. With `audit` each request is a line of JSON in `audit_log`.
    `link`: how a node reaches this machine; None without a node.
    """

    def __init__(
        self,
        folder: Path,
        ports: Ports,
        *,
        seed: Path | None = None,
        audit: bool = False,
        priority_and_fairness: bool = True,
        owner_permissions: bool = False,
        link: Link | None = None,
    ):
        self.folder, self.kubeconfig = folder, folder / "kubeconfig"
        self.audit_log = folder / "audit.log"
        # The API server makes its certificate there when it starts, signed by itself.
        self._ports, self._authority = ports, folder / "certificates" / "apiserver.crt"
        self._address = link.machine if link else "127.0.0.1"
        self.url = f"https://{self._address}:{ports.take()}"
        self.token = secrets.token_hex(32)
        self.api = Api(self.url, self.token, self._authority)
        self._etcd_url = f"http://127.0.0.1:{ports.take()}"
        self._node_tokens = {program: secrets.token_hex(32) for program in NODE_USERS} if link else {}
        tokens = [f"{self.token},admin,admin,system:masters"]
        tokens += [f"{token},{NODE_USERS[program]}" for program, token in self._node_tokens.items()]
        kubeconfig.private_file(folder / "tokens.csv", "\n".join([*tokens, ""]))
        _new_service_account_keys(folder / "sa.key", folder / "sa.pub")
        if seed:
            shutil.copytree(seed, folder / "etcd")
        self.etcd = self._new_etcd()
        self.apiserver = self._new_apiserver(audit, priority_and_fairness, owner_permissions)
        self.controller_manager = self._new_controller_manager()
        self.scheduler = self._new_scheduler()

    def start(self) -> None:
        """Starts etcd and the API server and writes the administrator's kubeconfig. ProcessFailed."""
        self.etcd.launch()
        self.apiserver.launch()  # it tries until etcd answers
        self.etcd.wait_ready()
        self.apiserver.wait_ready()
        kubeconfig.write(self.kubeconfig, self.url, self.authority, self.token)

    def kubeconfig_of(self, program: str) -> Path:
        """The kubeconfig of one of `NODE_USERS`. It can be written once the API server has started."""
        token = self._node_tokens[program]
        return kubeconfig.write(self.folder / f"kubeconfig-{program}", self.url, self.authority, token)

    @property
    def kubelet_clients(self) -> Path:
        """The certificate by which a kubelet knows the API server."""
        return self.folder / "kubelet-client.crt"

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

    def _new_apiserver(self, audit: bool, priority_and_fairness: bool, owner_permissions: bool) -> Process:
        arguments = [
            str(program(KUBE, "kube-apiserver")),
            f"--etcd-servers={self._etcd_url}",
            f"--cert-dir={self._authority.parent}",
            f"--bind-address={self._address}",
            f"--advertise-address={self._address}",
            *(self._for_a_node() if self._node_tokens else WITHOUT_NODE),
            f"--secure-port={self.url.rpartition(':')[2]}",
            f"--service-account-key-file={self.folder / 'sa.pub'}",
            f"--service-account-signing-key-file={self.folder / 'sa.key'}",
            "--service-account-issuer=https://kubernetes.default.svc",
            f"--token-auth-file={self.folder / 'tokens.csv'}",
            "--allow-privileged=true",
            "--delete-collection-workers=8",
            f"--service-cluster-ip-range={SERVICE_NETWORK}",
            f"--enable-priority-and-fairness={str(priority_and_fairness).lower()}",
        ]
        if owner_permissions:
            arguments.append("--enable-admission-plugins=OwnerReferencesPermissionEnforcement")
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

    def _for_a_node(self) -> list[str]:
        """Arguments of an API server that a node's kubelet and pods use."""
        key = self.folder / "kubelet-client.key"
        write_client_certificate(self.kubelet_clients, key, "kube-apiserver", "system:masters")
        return [
            "--authorization-mode=Node,RBAC",
            "--enable-admission-plugins=NodeRestriction",
            f"--kubelet-client-certificate={self.kubelet_clients}",
            f"--kubelet-client-key={key}",
            # The node's name is known to no name server of this machine.
            "--kubelet-preferred-address-types=InternalIP",
        ]

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
                "--leader-elect=false",  # there is one; a lease of a killed one would have to run out first
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
    # Never by a proxy of the user's environment: it could not reach this machine's loopback address.
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
