"""Where the API server is and how to prove who we are: a kubeconfig, or the pod's service account.

Guarantees: secrets are never in a `repr`, a log line or an error; a token or a certificate authority that is
rotated on disk is used within a minute, and at once when the server or its certificate is refused.
"""

import os
import ssl
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

SERVICE_ACCOUNT_FOLDER = Path("/var/run/secrets/kubernetes.io/serviceaccount")
_TOKEN_LIFETIME_SECONDS = 60.0
"""The kubelet replaces a token long before it expires; a minute is what Kubernetes' own clients use."""


class CredentialsError(RuntimeError):
    """No usable credentials; the text says where they were looked for and what is allowed."""


class Authorization(Protocol):
    """Who speaks, as the header `Authorization` says it."""

    def known(self) -> str | None:
        """The header's value, where it is at hand and fresh. Never blocks."""

    def read(self) -> str:
        """The header's value; reads a file, or runs a command, where that is needed. Raises
        `CredentialsError`."""

    def refused(self) -> bool:
        """The server did not accept the value. Returns whether there is another one now; may take as long as
        `read`. Raises `CredentialsError`."""


class TokenFile:
    """A bearer token in a file that somebody else rotates."""

    def __init__(self, path: Path, clock: Callable[[], float] = time.monotonic) -> None:
        self._path = path
        self._clock = clock
        self._value: str | None = None
        self._read_at = 0.0

    def known(self) -> str | None:
        """The header's value, unless it was read more than a minute ago."""
        return self._value if self._clock() - self._read_at < _TOKEN_LIFETIME_SECONDS else None

    def read(self) -> str:
        """The header's value, at most a minute old. Raises `CredentialsError` where there is none."""
        if (known := self.known()) is not None:
            return known
        try:
            token = self._path.read_text().strip()
        except OSError as error:
            raise CredentialsError(f"{self._path}: cannot read the token: {error.strerror}") from None
        if not token:
            raise CredentialsError(f"{self._path}: the token is empty")
        self._value, self._read_at = f"Bearer {token}", self._clock()
        return self._value

    def refused(self) -> bool:
        """The server did not accept the token. Returns whether the file holds another one."""
        old, self._value = self._value, None
        return self.read() != old


class AuthorityFile:
    """Certificates that the server's own is checked against, in a file that somebody else rotates."""

    def __init__(self, path: Path) -> None:
        """Raises `CredentialsError`."""
        self._path = path
        self._read = self._content()
        self.tls = self._context(self._read)

    def changed(self) -> bool:
        """The server's certificate was not accepted. Returns whether the file holds other authorities;
        `tls` is another one with them. Raises `CredentialsError`."""
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
    """None for plain HTTP."""
    authorization: Authorization | None = field(default=None, repr=False)
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


def find_credentials(
    kubeconfig: Path | None = None,
    context: str | None = None,
    environment: Mapping[str, str] = os.environ,
    service_account: Path = SERVICE_ACCOUNT_FOLDER,
) -> Credentials:
    """`kubeconfig` if given, else those of $KUBECONFIG, else the pod's service account, else ~/.kube/config.

    Runs the kubeconfig's credential command, which may ask its user to log in. Raises `CredentialsError`.
    """
    if kubeconfig is not None:
        return _read([kubeconfig], context, environment)
    if named := environment.get("KUBECONFIG"):
        # As kubectl: of several files those that do not exist are left out.
        paths = [Path(path).expanduser() for path in named.split(os.pathsep) if path]
        present = [path for path in paths if path.exists()]
        return _read(present or paths[:1], context, environment)
    # Set by the kubelet in every container.
    if environment.get("KUBERNETES_SERVICE_HOST"):
        return in_cluster(environment, service_account)
    home = Path(environment.get("HOME", "/nonexistent")) / ".kube" / "config"
    if home.exists():
        return _read([home], context, environment)
    raise CredentialsError(
        f"no API server: set KUBECONFIG, or run in a pod with a service account; {home} does not exist"
    )


def _read(paths: Sequence[Path], context: str | None, environment: Mapping[str, str]) -> Credentials:
    # Here, since the package that reads kubeconfigs takes 30 MB, for which a driver's pod has no use.
    from rljob_client.kubeconfig import from_kubeconfig

    return from_kubeconfig(paths, context, environment)


def in_cluster(
    environment: Mapping[str, str] = os.environ, folder: Path = SERVICE_ACCOUNT_FOLDER
) -> Credentials:
    """The service account that the pod runs under. Raises `CredentialsError`."""
    host = environment.get("KUBERNETES_SERVICE_HOST", "")
    port = environment.get("KUBERNETES_SERVICE_PORT", "443")
    if not host:
        raise CredentialsError("not in a pod: KUBERNETES_SERVICE_HOST is not set")
    token = TokenFile(folder / "token")
    # At once, so that a pod without a service account fails where that can be said.
    token.read()
    try:
        namespace = (folder / "namespace").read_text().strip()
    except OSError as error:
        raise CredentialsError(f"{folder}: incomplete service account: {error}") from None
    authority = AuthorityFile(folder / "ca.crt")
    # An IPv6 address stands in brackets in a URL.
    server = f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}"
    return Credentials(server, authority.tls, token, namespace, authority)
