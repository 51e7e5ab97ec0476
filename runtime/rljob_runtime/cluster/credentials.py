"""How the driver reaches the API server: the pod's service account, or a kubeconfig.

Guarantees: a token that is rotated on disk is used within a minute, and at once when the server refuses the
old one; secrets appear in no `repr` and in no error.
"""

import base64
import ssl
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
_TOKEN_SECONDS = 60.0
"""The kubelet replaces a token long before it expires; a minute is what Kubernetes' own clients use."""


class CredentialsError(RuntimeError):
    """There is no way to the API server; the message says what is missing where."""


class TokenFile:
    """A bearer token in a file that is rewritten from time to time."""

    def __init__(self, path: Path, clock: Callable[[], float] = time.monotonic) -> None:
        self._path = path
        self._clock = clock
        self._token = ""
        self._read_at = float("-inf")

    def read(self) -> str:
        """The token, at most a minute old. Raises `CredentialsError`."""
        now = self._clock()
        if now - self._read_at >= _TOKEN_SECONDS:
            try:
                self._token = self._path.read_text().strip()
            except OSError as error:
                raise CredentialsError(f"{self._path}: no token can be read: {error.strerror}") from None
            self._read_at = now
        return self._token

    def refused(self) -> None:
        """The server did not take the token: the next `read` looks at the file."""
        self._read_at = float("-inf")


class FixedToken:
    """A bearer token that stays the same."""

    def __init__(self, token: str) -> None:
        self._token = token

    def read(self) -> str:
        """The token."""
        return self._token

    def refused(self) -> None:
        """There is no other token: nothing to do."""


@dataclass(frozen=True)
class Credentials:
    """An API server and what is shown to it."""

    server: str
    """URL without a slash at its end."""
    tls: ssl.SSLContext | None
    """How the server is checked; None for plain HTTP."""
    token: TokenFile | FixedToken | None = field(default=None, repr=False)


def in_pod(environment: Mapping[str, str], folder: Path = SERVICE_ACCOUNT) -> Credentials:
    """The service account of the pod that this process runs in. Raises `CredentialsError`."""
    host, port = environment.get("KUBERNETES_SERVICE_HOST"), environment.get("KUBERNETES_SERVICE_PORT", "443")
    if not host:
        raise CredentialsError(
            "KUBERNETES_SERVICE_HOST is not set: `rljob drive` runs in a pod; on one machine use `rljob run`"
        )
    token = TokenFile(folder / "token")
    # At once, so that a pod without a service account fails where that can be said.
    token.read()
    try:
        tls = ssl.create_default_context(cafile=str(folder / "ca.crt"))
    except (OSError, ssl.SSLError) as error:
        raise CredentialsError(f"{folder / 'ca.crt'}: no certificate can be read: {error}") from None
    # An IPv6 address stands in brackets in a URL.
    return Credentials(f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}", tls, token)


def from_kubeconfig(path: Path) -> Credentials:
    """The current context of a kubeconfig whose user has a token. Raises `CredentialsError`."""
    try:
        config = yaml.safe_load(path.read_text())
        context = _named(config, "context", config["current-context"])
        cluster = _named(config, "cluster", context["cluster"])
        user = _named(config, "user", context["user"])
        return Credentials(str(cluster["server"]).rstrip("/"), _tls(cluster, path.parent), _token(user, path))
    except OSError as error:
        raise CredentialsError(f"{path}: cannot be read: {error.strerror}") from None
    except yaml.YAMLError:
        # The parser's own message quotes the file, which holds secrets.
        raise CredentialsError(f"{path}: is not YAML") from None
    except (KeyError, TypeError, StopIteration) as error:
        raise CredentialsError(f"{path}: is no kubeconfig with a current context: {error} missing") from None


def _named(config: dict[str, Any], kind: str, name: str) -> dict[str, Any]:
    entry: dict[str, Any] = next(each[kind] for each in config[f"{kind}s"] if each["name"] == name)
    return entry


def _tls(cluster: dict[str, Any], folder: Path) -> ssl.SSLContext | None:
    if str(cluster["server"]).startswith("http://"):
        return None
    if data := cluster.get("certificate-authority-data"):
        return ssl.create_default_context(cadata=base64.b64decode(data).decode())
    file = cluster.get("certificate-authority")
    return ssl.create_default_context(cafile=str(folder / file) if file else None)


def _token(user: dict[str, Any], path: Path) -> TokenFile | FixedToken:
    # As for kubectl, paths in a kubeconfig are relative to its folder.
    if file := user.get("tokenFile"):
        return TokenFile(path.parent / file)
    if token := user.get("token"):
        return FixedToken(token)
    raise CredentialsError(f"{path}: the user has no token and no tokenFile, which is all that is supported")
