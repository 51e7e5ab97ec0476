"""Where the API server is and how to prove who we are: a kubeconfig, or the pod's service account.

Guarantees: secrets are never in a `repr`, a log line or an error; a token that is rotated on disk is used
within a minute, and at once when the server refuses the old one.
"""

import base64
import binascii
import os
import ssl
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

SERVICE_ACCOUNT_FOLDER = Path("/var/run/secrets/kubernetes.io/serviceaccount")
_TOKEN_LIFETIME_SECONDS = 60.0
_UNSUPPORTED_CLUSTER = ("proxy-url", "tls-server-name")
_UNSUPPORTED_USER = ("exec", "auth-provider", "username", "as")
_SUPPORTED_USER = "token, tokenFile, client-certificate with client-key, or their -data forms"


class CredentialsError(RuntimeError):
    """No usable credentials; the text says where they were looked for and what is allowed."""


class FixedToken:
    """A bearer token that does not change."""

    def __init__(self, token: str) -> None:
        self._token = token

    def read(self) -> str:
        """The token."""
        return self._token

    def refused(self) -> bool:
        """The server did not accept the token. Returns whether another one is at hand."""
        return False


class TokenFile:
    """A bearer token in a file that somebody else rotates."""

    def __init__(self, path: Path, clock: Callable[[], float] = time.monotonic) -> None:
        self._path = path
        self._clock = clock
        self._token: str | None = None
        self._read_at = 0.0

    def read(self) -> str:
        """The token, at most a minute old. Raises `CredentialsError` where there is none."""
        now = self._clock()
        if self._token is None or now - self._read_at >= _TOKEN_LIFETIME_SECONDS:
            try:
                self._token = self._path.read_text().strip()
            except OSError as error:
                raise CredentialsError(f"{self._path}: cannot read the token: {error.strerror}") from None
            if not self._token:
                raise CredentialsError(f"{self._path}: the token is empty")
            self._read_at = now
        return self._token

    def refused(self) -> bool:
        """The server did not accept the token. Returns whether the file holds another one."""
        old, self._token = self._token, None
        return self.read() != old


@dataclass(frozen=True)
class Credentials:
    """An API server and how to speak to it."""

    server: str
    """URL without a trailing slash."""
    tls: ssl.SSLContext | None
    """None for plain HTTP."""
    token: FixedToken | TokenFile | None = field(default=None, repr=False)
    namespace: str = "default"
    """Namespace of whoever speaks."""


def find_credentials(
    kubeconfig: Path | None = None,
    context: str | None = None,
    environment: Mapping[str, str] = os.environ,
    service_account: Path = SERVICE_ACCOUNT_FOLDER,
) -> Credentials:
    """`kubeconfig` if given, else $KUBECONFIG, else the pod's service account, else ~/.kube/config."""
    if kubeconfig is not None:
        return from_kubeconfig(kubeconfig, context)
    if named := environment.get("KUBECONFIG"):
        # Merging several files by kubectl's rules is kubectl's business.
        if os.pathsep in named:
            raise CredentialsError("KUBECONFIG names several files: name one (kubectl config view --flatten)")
        return from_kubeconfig(Path(named), context)
    # Set by the kubelet in every container.
    if environment.get("KUBERNETES_SERVICE_HOST"):
        return in_cluster(environment, service_account)
    home = Path(environment.get("HOME", "/nonexistent")) / ".kube" / "config"
    if home.exists():
        return from_kubeconfig(home, context)
    raise CredentialsError(
        f"no API server: set KUBECONFIG, or run in a pod with a service account; {home} does not exist"
    )


def in_cluster(
    environment: Mapping[str, str] = os.environ, folder: Path = SERVICE_ACCOUNT_FOLDER
) -> Credentials:
    """The service account that the pod runs under."""
    host = environment.get("KUBERNETES_SERVICE_HOST", "")
    port = environment.get("KUBERNETES_SERVICE_PORT", "443")
    if not host:
        raise CredentialsError("not in a pod: KUBERNETES_SERVICE_HOST is not set")
    token = TokenFile(folder / "token")
    token.read()
    try:
        namespace = (folder / "namespace").read_text().strip()
        tls = ssl.create_default_context(cafile=str(folder / "ca.crt"))
    except OSError as error:
        raise CredentialsError(f"{folder}: incomplete service account: {error}") from None
    return Credentials(
        f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}", tls, token, namespace
    )


def from_kubeconfig(path: Path, context: str | None = None) -> Credentials:
    """The cluster and user of `context`, by default the file's current one."""
    try:
        config = yaml.safe_load(path.read_text())
    except OSError as error:
        raise CredentialsError(f"{path}: cannot read the kubeconfig: {error.strerror}") from None
    except yaml.YAMLError:
        # The parser's own message quotes the file, which holds secrets.
        raise CredentialsError(f"{path}: not valid YAML") from None
    if not isinstance(config, dict):
        raise CredentialsError(f"{path}: not a kubeconfig: it is no mapping")
    name = context or config.get("current-context")
    if not name:
        raise CredentialsError(f"{path}: no current-context: set one (kubectl config use-context)")
    chosen = _named(path, config, "context", name)
    cluster = _named(path, config, "cluster", chosen.get("cluster"))
    user = _named(path, config, "user", chosen.get("user")) if chosen.get("user") else {}
    server = str(cluster.get("server", "")).rstrip("/")
    if not server.startswith(("https://", "http://")):
        raise CredentialsError(f"{path}: cluster {chosen.get('cluster')!r}: server must be an http(s) URL")
    # To ignore one would be to speak to another server, or as somebody else, than kubectl does.
    for key in _UNSUPPORTED_CLUSTER:
        if key in cluster:
            raise CredentialsError(f"{path}: cluster {chosen.get('cluster')!r}: {key} is not supported")
    for key in _UNSUPPORTED_USER:
        if key in user:
            raise CredentialsError(
                f"{path}: user {chosen['user']!r}: {key} is not supported; allowed: {_SUPPORTED_USER}"
            )
    tls = _tls(path, cluster, user) if server.startswith("https://") else None
    return Credentials(server, tls, _token(path, user), chosen.get("namespace") or "default")


def _named(path: Path, config: Mapping[str, Any], kind: str, name: str | None) -> dict[str, Any]:
    for entry in config.get(f"{kind}s") or []:
        if entry.get("name") == name:
            return entry.get(kind) or {}
    raise CredentialsError(f"{path}: there is no {kind} named {name!r}")


def _token(path: Path, user: Mapping[str, Any]) -> FixedToken | TokenFile | None:
    if "token" in user:
        return FixedToken(str(user["token"]))
    if "tokenFile" in user:
        return TokenFile(path.parent / user["tokenFile"])
    return None


def _tls(path: Path, cluster: Mapping[str, Any], user: Mapping[str, Any]) -> ssl.SSLContext:
    authority = _pem(path, cluster, "certificate-authority")
    try:
        context = ssl.create_default_context(cadata=authority.decode("ascii") if authority else None)
        if cluster.get("insecure-skip-tls-verify"):
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        certificate, key = _pem(path, user, "client-certificate"), _pem(path, user, "client-key")
        if certificate and key:
            with _as_file(certificate) as certificate_file, _as_file(key) as key_file:
                context.load_cert_chain(certificate_file, key_file)
    except (ssl.SSLError, UnicodeDecodeError) as error:
        raise CredentialsError(f"{path}: unusable certificate or key: {error}") from None
    return context


def _pem(path: Path, holder: Mapping[str, Any], key: str) -> bytes | None:
    """PEM that a kubeconfig holds itself (base64) or names a file of, relative to its own folder."""
    if data := holder.get(f"{key}-data"):
        try:
            return base64.b64decode(data, validate=True)
        except binascii.Error:
            raise CredentialsError(f"{path}: {key}-data is not base64") from None
    if named := holder.get(key):
        try:
            return Path(path.parent, str(named)).read_bytes()
        except OSError as error:
            raise CredentialsError(f"{path}: {key} {named}: {error.strerror}") from None
    return None


@contextmanager
def _as_file(pem: bytes) -> Iterator[str]:
    """The ssl module loads private keys from files only: one that is readable by us alone, and only now."""
    with tempfile.NamedTemporaryFile() as file:
        file.write(pem)
        file.flush()
        yield file.name
