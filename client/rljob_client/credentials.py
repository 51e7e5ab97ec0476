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
from functools import partial
from pathlib import Path

from rljob_client.identity import CredentialsError as CredentialsError
from rljob_client.identity import Identity
from rljob_client.shared_login import FILE_PACE, SharedLogin

SERVICE_ACCOUNT_FOLDER = Path("/var/run/secrets/kubernetes.io/serviceaccount")
TOKEN_FILE_SECONDS = 60.0
"""The kubelet replaces a token long before it expires; a minute is what Kubernetes' own clients use."""


class TokenFile(SharedLogin):
    """A bearer token in a file that somebody else rotates."""

    def __init__(
        self, path: Path, clock: Callable[[], float] = time.monotonic, at_once: bool = False
    ) -> None:
        """Reads nothing yet, but for `at_once`: then it raises `CredentialsError`."""
        super().__init__(
            partial(_token_in, path), FILE_PACE, clock, first=_token_in(path) if at_once else None
        )


def _token_in(path: Path) -> Identity:
    try:
        token = path.read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is no text"
        raise CredentialsError(f"{path}: cannot read the token: {why}") from None
    if not token:
        raise CredentialsError(f"{path}: the token is empty")
    return Identity(f"Bearer {token}", lifetime=TOKEN_FILE_SECONDS)


class AuthorityFile:
    """Certificates that the server's own is checked against, in a file that somebody else rotates."""

    def __init__(self, path: Path) -> None:
        """Raises `CredentialsError`."""
        self._path = path
        self._read = self._content()
        self._lock = threading.Lock()
        self.tls = self._context(self._read)

    def changed(self, used: ssl.SSLContext) -> bool:
        """The server's certificate was not accepted with `used`, which was `tls` then. Returns whether
        `tls` is another one now, since the file holds other authorities. Raises `CredentialsError`."""
        with self._lock:
            # Another request that met the same has read the file.
            if self.tls is not used:
                return True
            content = self._content()
            if content == self._read:
                return False
            # Not beside the old ones: of two authorities with one name OpenSSL takes the first.
            self.tls, self._read = self._context(content), content
            return True

    def _context(self, content: str) -> ssl.SSLContext:
        try:
            return ssl.create_default_context(cadata=content)
        except ssl.SSLError as error:
            raise CredentialsError(f"{self._path}: no certificate can be read: {error}") from None

    def _content(self) -> str:
        try:
            return self._path.read_text("ascii")
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
) -> Credentials:
    """`kubeconfig` if given, else those of $KUBECONFIG, else the pod's service account, else ~/.kube/config.

    Runs the kubeconfig's credential command, which may ask its user to log in. Raises `CredentialsError`.
    """
    if kubeconfig is not None:
        return _read([kubeconfig], context, environment, clock)
    if named := environment.get("KUBECONFIG"):
        # As kubectl: of several files those that do not exist are left out.
        paths = [Path(path).expanduser() for path in named.split(os.pathsep) if path]
        present = [path for path in paths if path.exists()]
        return _read(present or paths[:1], context, environment, clock)
    # Set by the kubelet in every container.
    if environment.get("KUBERNETES_SERVICE_HOST"):
        return in_cluster(environment, service_account, clock)
    home = Path(environment.get("HOME", "/nonexistent")) / ".kube" / "config"
    if home.exists():
        return _read([home], context, environment, clock)
    raise CredentialsError(
        f"no API server: set KUBECONFIG, or run in a pod with a service account; {home} does not exist"
    )


def _read(
    paths: Sequence[Path],
    context: str | None,
    environment: Mapping[str, str],
    clock: Callable[[], float],
) -> Credentials:
    # Here, since the package that reads kubeconfigs takes 30 MB, for which a driver's pod has no use.
    from rljob_client.kubeconfig import from_kubeconfig

    return from_kubeconfig(paths, context, environment, clock)


def in_cluster(
    environment: Mapping[str, str] = os.environ,
    folder: Path = SERVICE_ACCOUNT_FOLDER,
    clock: Callable[[], float] = time.monotonic,
) -> Credentials:
    """The service account that the pod runs under. Raises `CredentialsError`."""
    host = environment.get("KUBERNETES_SERVICE_HOST", "")
    port = environment.get("KUBERNETES_SERVICE_PORT", "443")
    if not host:
        raise CredentialsError("not in a pod: KUBERNETES_SERVICE_HOST is not set")
    # At once, so that a pod without a service account fails where that can be said.
    token = TokenFile(folder / "token", clock, at_once=True)
    try:
        namespace = (folder / "namespace").read_text().strip()
    except OSError as error:
        raise CredentialsError(f"{folder}: incomplete service account: {error}") from None
    authority = AuthorityFile(folder / "ca.crt")
    # An IPv6 address stands in brackets in a URL.
    server = f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}"
    return Credentials(server, authority.tls, token, namespace, authority)
