"""What kubeconfigs say: the server, and who speaks to it.

Read by the `kubernetes` package, so that what works with kubectl works here: several files, commands that
log in (EKS, GKE, AKS), OpenID Connect, certificates, proxies. Guarantees: what cannot be done is refused,
with the file and the key; a secret is in no error and in no file that stays; the first file that names a
current context wins, as for kubectl (the package takes the last).
"""

import copy
import os
import ssl
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from ipaddress import ip_address
from math import inf
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import certifi
import yaml
from kubernetes.aio.client import Configuration
from kubernetes.client import ApiException
from kubernetes.config import ConfigException
from kubernetes.config.kube_config import ConfigNode, KubeConfigLoader, KubeConfigMerger
from oauthlib.oauth2 import OAuth2Error
from requests import RequestException
from requests.utils import should_bypass_proxies
from urllib3.exceptions import HTTPError

from rljob_client.certificate_end import not_after
from rljob_client.connections import new_tls
from rljob_client.credentials import TOKEN_FILE_SECONDS, Credentials
from rljob_client.exec_answer import ExecAnswer, read_credential
from rljob_client.exec_command import run_command
from rljob_client.exec_config import read_config
from rljob_client.identity import CredentialsError, Identity
from rljob_client.shared_login import COMMAND_PACE, FILE_PACE, SharedLogin

_IDENTITY_PROVIDER_AUTHORITY = "idp-certificate-authority"


def from_kubeconfig(
    paths: Sequence[Path],
    context: str | None = None,
    environment: Mapping[str, str] = os.environ,
    clock: Callable[[], float] = time.monotonic,
) -> Credentials:
    """The cluster and user of `context`, by default the first that a file names as its current one.

    Runs the user's credential command, if there is one. Raises `CredentialsError`.
    """
    login = _Login(paths, context)
    configuration, who = login.load()
    server = str(configuration.host)
    return Credentials(
        server,
        login.tls,
        login.authorization(who, clock),
        str(login.context.get("namespace") or "default"),
        server_name=configuration.tls_server_name,
        proxy=_proxy(login.where, server, configuration.proxy, environment),
        headers=_impersonation(login.user.value) if login.user else (),
    )


class _Login:
    """A context of kubeconfigs. Logs in as its user, and again when the server wants it."""

    def __init__(self, paths: Sequence[Path], context: str | None) -> None:
        self.where = ", ".join(map(str, paths))
        self._merger, current = _merged(paths)
        if not (name := context or current):
            raise CredentialsError(f"{self.where}: no current-context: set one (kubectl config use-context)")
        self._name = name
        self.context: dict[str, Any] = self._part("context", name).value
        if not self.context.get("cluster"):
            raise CredentialsError(f"{self.where}: context {name!r} names no cluster")
        self.cluster = self._part("cluster", self.context.get("cluster"))
        self.user = self._part("user", self.context["user"]) if self.context.get("user") else None
        self._check()
        self.tls: ssl.SSLContext | None = None
        """With the newest certificate."""
        self._certificate: bytes | None = None
        self._had_certificate = False

    def authorization(self, who: Identity, clock: Callable[[], float]) -> SharedLogin | None:
        """The user's logins, after the first one; None for a user with neither a header nor a certificate."""
        if who.header is None and who.certificate is None:
            return None
        pace = FILE_PACE if self._has_token_file() else COMMAND_PACE
        return SharedLogin(lambda: self.load()[1], pace, clock, first=who)

    def _has_token_file(self) -> bool:
        """Whether the token is that of a file: as for kubectl, it goes before one in the kubeconfig, which
        counts where the file is missing or empty."""
        if self.user is None or "tokenFile" not in self.user.value:
            return False
        file = Path(self.user.path).absolute().parent / str(self.user.value["tokenFile"])
        return "token" not in self.user.value or (file.is_file() and file.stat().st_size > 0)

    def load(self) -> tuple[Configuration, Identity]:
        """What the `kubernetes` package makes of the context, and who speaks. Raises `CredentialsError`."""
        configuration = Configuration()
        answer = self._run_command()
        try:
            # Files, since the ssl module reads private keys from files alone; gone with this block.
            with tempfile.TemporaryDirectory() as folder:
                self._loader(answer.user if answer else None, folder).load_and_set(configuration)
                certificate = self._take_certificate(configuration)
            ends = answer.expires if answer else None
            if ends is None and certificate is not None:
                ends = not_after(certificate)
        except ssl.SSLError as error:
            raise CredentialsError(f"{self.where}: unusable certificate or key: {error}") from None
        except OSError as error:
            raise CredentialsError(f"{self.where}: {error.filename or ''}: {error.strerror}") from None
        except (ConfigException, ValueError) as error:
            raise CredentialsError(f"{self.where}: {error}") from None
        except (ApiException, HTTPError, RequestException, OAuth2Error) as error:
            raise CredentialsError(
                f"{self.where}: user {self.context['user']!r}: the identity provider gives no token:"
                f" {type(error).__name__}"
            ) from None
        lifetime = inf if ends is None else (ends - datetime.now(UTC)).total_seconds()
        # The package leaves the end of a token file's line in it.
        header = (configuration.api_key.get("BearerToken") or "").strip() or None
        if self._has_token_file():
            lifetime = min(lifetime, TOKEN_FILE_SECONDS)
            # Whoever writes the file may be about to; without a token one would be nobody.
            if header in (None, "Bearer"):
                raise CredentialsError(f"{self.where}: user {self.context['user']!r}: its tokenFile is empty")
        # Also for whoever has none any more, whom that of the credentials would show as who he was.
        own = self.tls if self._had_certificate else None
        return configuration, Identity(header, certificate, own, lifetime)

    def _loader(self, answered: Mapping[str, str] | None, folder: str) -> KubeConfigLoader:
        config = self._merger.config
        persist = None
        if answered is not None:
            config = copy.deepcopy(config)
            self._user_in(config).value["user"] = dict(answered)
        elif self._has_token_file():
            # The package takes the other one.
            config = copy.deepcopy(config)
            self._user_in(config).value["user"].pop("token", None)
        elif provider := self._identity_provider():
            # Without one the package would not check who answers as the identity provider.
            added = (
                not {_IDENTITY_PROVIDER_AUTHORITY, f"{_IDENTITY_PROVIDER_AUTHORITY}-data"} & provider.keys()
            )
            if added:
                provider[_IDENTITY_PROVIDER_AUTHORITY] = certifi.where()

            def persist() -> None:
                # As kubectl does: an identity provider may take back a refresh token that was used.
                if added:
                    provider.pop(_IDENTITY_PROVIDER_AUTHORITY, None)
                self._merger.save_changes()

        return KubeConfigLoader(
            config_dict=config,
            active_context=self._name,
            config_base_path=None,
            config_persister=persist,
            temp_file_path=folder,
        )

    def _user_in(self, config: ConfigNode) -> ConfigNode:
        entries: list[ConfigNode] = config.value["users"]
        return next(user for user in entries if user.value["name"] == self.context["user"])

    def _identity_provider(self) -> dict[str, Any] | None:
        provider = self.user.value.get("auth-provider") if self.user else None
        return provider.setdefault("config", {}) if provider else None

    def _run_command(self) -> ExecAnswer | None:
        """What the user's credential command answers; None without a command."""
        if self.user is None or self.user.value.get("exec") is None:
            return None
        said = f"{self.user.path}: user {self.context['user']!r}:"
        try:
            command = read_config(self.user.value["exec"])
        except ValueError as error:
            raise CredentialsError(f"{said} {error}") from None
        said = f"{said} exec {command.program}:"
        folder = Path(self.user.path).absolute().parent
        try:
            return read_credential(run_command(command, folder, self.cluster.value), command.api_version)
        except OSError as error:
            hint = f"; {command.hint}" if command.hint else ""
            raise CredentialsError(f"{said} {error.strerror}{hint}") from None
        except ValueError as error:
            raise CredentialsError(f"{said} {error}") from None

    def _take_certificate(self, configuration: Configuration) -> bytes | None:
        """The user's certificate, if there is one; with it `tls` is another one, since connections are kept
        by it: an old one would go on as whoever it began as."""
        if not str(configuration.host).startswith("https://"):
            return None
        file = configuration.cert_file
        certificate = Path(file).read_bytes() if file else None
        self._had_certificate |= certificate is not None
        if self.tls is None or certificate != self._certificate:
            self.tls, self._certificate = new_tls(configuration), certificate
        return certificate

    def _check(self) -> None:
        """Refuse what the package would pass over: to ignore a key would be to speak to another server, or as
        somebody else, than kubectl does."""
        name = self.context.get("cluster")
        server = self.cluster.value.get("server")
        if not isinstance(server, str) or not server.startswith(("https://", "http://")):
            raise CredentialsError(f"{self.where}: cluster {name!r}: server must be an http(s) URL")
        try:
            urlsplit(server).port  # noqa: B018 - it is read when it is asked for
        except ValueError as error:
            raise CredentialsError(f"{self.where}: cluster {name!r}: server {server}: {error}") from None
        provider = self.user.value.get("auth-provider") if self.user else None
        if provider is not None and provider.get("name") != "oidc":
            raise CredentialsError(
                f"{self.where}: user {self.context['user']!r}: auth-provider {provider.get('name')!r} is not"
                " supported; allowed: oidc, or the provider's command under exec"
            )

    def _named(self, kind: str, name: Any) -> ConfigNode:
        for entry in self._merger.config.value[f"{kind}s"]:
            if entry.value["name"] == name:
                return entry
        raise CredentialsError(f"{self.where}: there is no {kind} named {name!r}")

    def _part(self, kind: str, name: Any) -> ConfigNode:
        entry = self._named(kind, name)
        return ConfigNode(kind, entry.value.get(kind) or {}, entry.path)


def _merged(paths: Sequence[Path]) -> tuple[KubeConfigMerger, str | None]:
    """The files as one, and the first current context that one of them names."""
    current = None
    for path in paths:
        try:
            config = yaml.safe_load(path.read_text())
        except OSError as error:
            raise CredentialsError(f"{path}: cannot read the kubeconfig: {error.strerror}") from None
        except (yaml.YAMLError, UnicodeDecodeError):
            # The parser's own message quotes the file, which holds secrets.
            raise CredentialsError(f"{path}: not valid YAML") from None
        if not isinstance(config, dict):
            raise CredentialsError(f"{path}: not a kubeconfig: it is no mapping")
        for kind in ("cluster", "context", "user"):
            _check_entries(path, kind, config.get(f"{kind}s") or [])
        current = current or config.get("current-context")
    merger = KubeConfigMerger(os.pathsep.join(map(str, paths)))
    for kind in ("cluster", "user"):
        for entry in merger.config.value[f"{kind}s"]:
            _drop_empty(entry.value.get(kind) or {})
    return merger, current


def _drop_empty(part: dict[str, Any]) -> None:
    """Leave out what says nothing: to kubectl it is not there, and the package would prefer it to a file."""
    for key in [key for key, value in part.items() if value in ("", None)]:
        del part[key]


def _check_entries(path: Path, kind: str, entries: Any) -> None:
    """Each is a name and a mapping, which the package takes for granted."""
    if not isinstance(entries, list):
        raise CredentialsError(f"{path}: {kind}s must be a list")
    for entry in entries:
        if not isinstance(entry, dict) or "name" not in entry:
            raise CredentialsError(f"{path}: an entry of {kind}s has no name")
        if not isinstance(entry.get(kind) or {}, dict):
            raise CredentialsError(f"{path}: {kind} {entry['name']!r} must be a mapping")


def _proxy(where: str, server: str, named: str | None, environment: Mapping[str, str]) -> str | None:
    """The proxy of the kubeconfig, else of HTTPS_PROXY and NO_PROXY, which never count for this machine."""
    host = urlsplit(server).hostname or ""
    if named is None and not _is_here(host):
        scheme = urlsplit(server).scheme
        found = environment.get(f"{scheme}_proxy") or environment.get(f"{scheme.upper()}_PROXY")
        # Of no other places: `requests` would ask the system's settings, too.
        unless = environment.get("no_proxy") or environment.get("NO_PROXY") or ""
        named = found if found and not should_bypass_proxies(server, unless) else None
    if named is not None and not named.startswith(("http://", "https://")):
        raise CredentialsError(f"{where}: a proxy must be an http(s) URL; SOCKS is not supported")
    return named


def _is_here(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _impersonation(user: Mapping[str, Any]) -> tuple[tuple[str, str], ...]:
    """The headers for `as`, `as-uid`, `as-groups` and `as-user-extra`."""
    found = [
        (header, str(user[key]))
        for key, header in (("as", "Impersonate-User"), ("as-uid", "Impersonate-Uid"))
        if user.get(key)
    ]
    found += [("Impersonate-Group", str(group)) for group in user.get("as-groups") or ()]
    for key, values in (user.get("as-user-extra") or {}).items():
        found += [(f"Impersonate-Extra-{key}", str(value)) for value in values]
    return tuple(found)
