"""Where the API server is and how to prove who we are: a kubeconfig, or the pod's service account.

Guarantees: secrets are never in a `repr`, a log line or an error; a token or a certificate authority that is
rotated on disk is used within a minute, and at once when the server or its certificate is refused.
"""

import os
import ssl
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from kubernetes.aio.client import Configuration
from kubernetes.aio.config import ConfigException
from kubernetes.aio.config.incluster_config import InClusterConfigLoader

from rljob_client.connections import Connections, new_tls
from rljob_client.identity import CredentialsError as CredentialsError
from rljob_client.identity import Identity
from rljob_client.shared_login import FILE_PACE, SharedLogin

SERVICE_ACCOUNT_FOLDER = Path("/var/run/secrets/kubernetes.io/serviceaccount")
TOKEN_FILE_SECONDS = 60.0
"""The kubelet replaces a token long before it expires; a minute is what Kubernetes' own clients use."""


class AuthorityFile:
    """Certificates that the server's own is checked against, in a file that somebody else rotates."""

    def __init__(self, path: Path) -> None:
        """Raises `CredentialsError`."""
        self._path = path
        self._lock = threading.Lock()
        self._content, self.tls = self._read()

    def changed(self, used: ssl.SSLContext) -> bool:
        """The server's certificate was not accepted with `used`, which was `tls` then. Returns whether
        `tls` is another one now, since the file holds other authorities. Raises `CredentialsError`."""
        with self._lock:
            # Another request that met the same has read the file.
            if self.tls is not used:
                return True
            content, tls = self._read()
            if content == self._content:
                return False
            # Not beside the old ones: of two authorities with one name OpenSSL takes the first.
            self._content, self.tls = content, tls
            return True

    def _read(self) -> tuple[str, ssl.SSLContext]:
        try:
            content = self._path.read_text("ascii")
            return content, new_tls(Configuration(ca_cert_data=content))
        except (OSError, UnicodeDecodeError) as error:
            raise CredentialsError(f"{self._path}: no certificate can be read: {error}") from None


@dataclass(frozen=True)
class Credentials:
    """An API server and how to speak to it."""

    server: str
    """URL without a trailing slash."""
    tls: ssl.SSLContext | None
    """For whoever has none of his own; None for plain HTTP."""
    authorization: SharedLogin | None = field(default=None, repr=False)
    """Who speaks; None: nobody in particular."""
    namespace: str = "default"
    """Namespace of whoever speaks."""
    authority: AuthorityFile | None = field(default=None, repr=False)
    """Where the certificates of `tls` come from, if somebody rotates them: then its `tls` is the newest."""
    server_name: str | None = None
    """The name that the server's certificate must bear; None for the one in `server`."""
    proxy: str | None = field(default=None, repr=False)
    """URL of the HTTP proxy on the way to the server. Not shown: it may hold a password."""
    headers: tuple[tuple[str, str], ...] = ()
    """Headers of each request, such as those of impersonation."""

    @cached_property
    def connections(self) -> Connections:
        """To the server, not opened."""
        named = {"proxy": self.proxy, "tls_server_name": self.server_name}
        return Connections(Configuration(self.server, **named))

    def tls_of(self, who: Identity | None) -> ssl.SSLContext | None:
        """For connections as `who` that begin now; None for plain HTTP."""
        if who is not None and who.tls is not None:
            return who.tls
        return self.tls if self.authority is None else self.authority.tls


def find_credentials(
    kubeconfig: Path | None = None,
    context: str | None = None,
    environment: Mapping[str, str] = os.environ,
    service_account: Path = SERVICE_ACCOUNT_FOLDER,
    clock: Callable[[], float] = time.monotonic,
    as_kubectl: bool = False,
) -> Credentials:
    """`kubeconfig` if given, else those of $KUBECONFIG, else the pod's service account, else ~/.kube/config.

    `as_kubectl`: in kubectl's order, in which the service account speaks only where there is no kubeconfig.
    It has no context: where one is given, it does not speak in either order. Runs the kubeconfig's credential
    command, which may ask its user to log in. Raises `CredentialsError`.
    """
    if kubeconfig is not None:
        return _read([kubeconfig], context, environment, clock)
    home = Path(environment.get("HOME", "/nonexistent")) / ".kube" / "config"
    listed = environment.get("KUBECONFIG", "").split(os.pathsep)
    named = [Path(path).expanduser() for path in listed if path]
    # As kubectl: with $KUBECONFIG that of the home does not count.
    paths = named or [home]
    # As kubectl: of several files those that do not exist are left out.
    present = [path for path in paths if path.exists()]
    # Set by the kubelet in every container.
    in_pod = bool(environment.get("KUBERNETES_SERVICE_HOST"))
    before = present if as_kubectl else named
    if in_pod and not context and not before:
        return in_cluster(environment, service_account, clock)
    if present or named:
        return _read(present or paths[:1], context, environment, clock)
    if in_pod:
        raise CredentialsError(
            f"context {context!r} is given, and there is no kubeconfig: {home} does not exist; without a"
            " context the pod's service account speaks"
        )
    raise CredentialsError(
        f"no API server: set KUBECONFIG, or run in a pod with a service account; {home} does not exist"
    )


def _read(
    paths: Sequence[Path],
    context: str | None,
    environment: Mapping[str, str],
    clock: Callable[[], float],
) -> Credentials:
    # Here, since it needs this module.
    from rljob_client.kubeconfig import from_kubeconfig

    return from_kubeconfig(paths, context, environment, clock)


def in_cluster(
    environment: Mapping[str, str] = os.environ,
    folder: Path = SERVICE_ACCOUNT_FOLDER,
    clock: Callable[[], float] = time.monotonic,
) -> Credentials:
    """The service account that the pod runs under. Raises `CredentialsError`."""
    if not environment.get("KUBERNETES_SERVICE_HOST"):
        raise CredentialsError("not in a pod: KUBERNETES_SERVICE_HOST is not set")
    read = Configuration()

    def log_in() -> Identity:
        where = {"KUBERNETES_SERVICE_PORT": "443", **environment}
        try:
            InClusterConfigLoader(folder / "token", folder / "ca.crt", environ=where).load_and_set(read)
        except (ConfigException, OSError) as error:
            raise CredentialsError(f"{folder}: {error}") from None
        except UnicodeDecodeError:
            raise CredentialsError(f"{folder}: token and ca.crt must be text") from None
        # The package leaves the end of the file's line in it.
        kind, _, token = read.api_key["BearerToken"].strip().partition(" ")
        if not token:
            raise CredentialsError(f"{folder}: the token is empty")
        if not (token.isascii() and token.isprintable()):
            raise CredentialsError(f"{folder}: the token must be one line of ASCII characters")
        return Identity(f"{kind} {token}", lifetime=TOKEN_FILE_SECONDS)

    # At once, so that a pod without a service account fails where that can be said.
    who = log_in()
    try:
        namespace = (folder / "namespace").read_text().strip()
    except OSError as error:
        raise CredentialsError(f"{folder}: incomplete service account: {error}") from None
    authority = AuthorityFile(folder / "ca.crt")
    login = SharedLogin(log_in, FILE_PACE, clock, first=who)
    return Credentials(read.host, authority.tls, login, namespace, authority)
