"""What kubeconfigs say: the server, and who speaks to it.

Certificates and tokens' files are read by the `kubernetes` package. What works with kubectl works here:
several files, commands that log in (EKS, GKE, AKS), OpenID Connect, certificates, proxies. Guarantees: what
cannot be done is refused, with the file and the key; a secret is in no error and in no file that stays; a
login ends.
"""

import base64
import os
import ssl
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from math import inf
from pathlib import Path
from typing import Any

from kubernetes.aio.client import Configuration
from kubernetes.config import ConfigException
from kubernetes.config.kube_config import KubeConfigLoader

from rljob_client.certificate_end import not_after
from rljob_client.connections import new_tls
from rljob_client.credentials import TOKEN_FILE_SECONDS, Credentials
from rljob_client.exec_answer import ExecAnswer, read_credential
from rljob_client.exec_command import run_command
from rljob_client.exec_config import read_config
from rljob_client.identity import CredentialsError, Identity
from rljob_client.kubeconfig_fields import (
    check_cluster,
    check_context,
    check_user,
    impersonation,
)
from rljob_client.kubeconfig_files import KubeconfigFiles, Part, keep_tokens
from rljob_client.oidc import Provider, read_provider
from rljob_client.oidc_refresh import refreshed
from rljob_client.proxy import proxy_of
from rljob_client.shared_login import COMMAND_PACE, FILE_PACE, SharedLogin

_FILES = ("certificate-authority", "client-certificate", "client-key", "tokenFile")


def from_kubeconfig(
    paths: Sequence[Path],
    context: str | None = None,
    environment: Mapping[str, str] = os.environ,
    clock: Callable[[], float] = time.monotonic,
) -> Credentials:
    """The cluster and user of `context`, by default the first that a file names as its current one.

    Runs the user's credential command, or asks the identity provider, if there is one. Raises
    `CredentialsError`.
    """
    login = _Login(paths, context, environment)
    configuration, who = login.load()
    server = str(configuration.host)
    return Credentials(
        server,
        login.tls,
        login.authorization(who, clock),
        login.context.get("namespace", "default"),
        server_name=configuration.tls_server_name,
        proxy=_proxy(login.where, server, configuration.proxy, environment),
        headers=impersonation(login.user.value) if login.user else (),
    )


class _Login:
    """A context of kubeconfigs. Logs in as its user, and again when the server wants it."""

    def __init__(self, paths: Sequence[Path], context: str | None, environment: Mapping[str, str]) -> None:
        files = KubeconfigFiles(paths)
        self.where = files.where
        self._environment = environment
        if not (name := context or files.current):
            raise CredentialsError(f"{self.where}: no current-context: set one (kubectl config use-context)")
        chosen = files.part("context", name)
        self._check(chosen, "context", check_context)
        self.context = chosen.value
        if "cluster" not in self.context:
            raise CredentialsError(f"{self.where}: context {name!r} names no cluster")
        self.cluster = files.part("cluster", self.context["cluster"])
        self._check(self.cluster, "cluster", check_cluster)
        self.user = files.part("user", self.context["user"]) if "user" in self.context else None
        self._provider: Provider | None = None
        if self.user is not None:
            self._check(self.user, "user", check_user)
            self._provider = self._identity_provider(self.user)
        self.tls: ssl.SSLContext | None = None
        """With the newest certificate."""
        self._certificate: bytes | None = None
        self._had_certificate = False

    def _check(self, part: Part, kind: str, check: Callable[[Mapping[str, Any]], None]) -> None:
        """Refuse what the package would pass over: to ignore a key would be to speak to another server, or as
        somebody else, than kubectl does."""
        try:
            check(part.value)
        except ValueError as error:
            raise CredentialsError(f"{part.path}: {kind} {part.name!r}: {error}") from None

    def authorization(self, who: Identity, clock: Callable[[], float]) -> SharedLogin | None:
        """The user's logins, after the first one; None for a user with neither a header nor a certificate."""
        if who.header is None and who.certificate is None:
            return None
        pace = FILE_PACE if self._has_token_file() else COMMAND_PACE
        return SharedLogin(lambda: self.load()[1], pace, clock, first=who)

    def _has_token_file(self) -> bool:
        """Whether the token is that of a file: as for kubectl, it goes before one in the kubeconfig, which
        counts where the file is missing or empty. Neither counts beside other logins."""
        if self.user is None or "tokenFile" not in self.user.value:
            return False
        if "exec" in self.user.value or self._provider is not None:
            return False
        file = self.user.folder / self.user.value["tokenFile"]
        return "token" not in self.user.value or (file.is_file() and file.stat().st_size > 0)

    def load(self) -> tuple[Configuration, Identity]:
        """What the `kubernetes` package makes of the context, and who speaks. Raises `CredentialsError`."""
        configuration = Configuration()
        answer = self._run_command()
        ends = answer.expires.timestamp() if answer and answer.expires else None
        try:
            if answer is None and self._provider is not None:
                ends = self._ask_provider()
            # Files, since the ssl module reads private keys from files alone; gone with this block.
            with tempfile.TemporaryDirectory() as folder:
                self._loader(answer, folder).load_and_set(configuration)
                certificate = self._take_certificate(configuration)
            if ends is None and certificate is not None:
                ends = not_after(certificate).timestamp()
        except ssl.SSLError as error:
            raise CredentialsError(f"{self.where}: unusable certificate or key: {error}") from None
        except OSError as error:
            raise CredentialsError(f"{self.where}: {error.filename or ''}: {error.strerror}") from None
        except (ConfigException, ValueError) as error:
            raise CredentialsError(f"{self.where}: {error}") from None
        lifetime = inf if ends is None else ends - time.time()
        header = self._header(configuration)
        if self._has_token_file():
            lifetime = min(lifetime, TOKEN_FILE_SECONDS)
        # Also for whoever has none any more, whom that of the credentials would show as who he was.
        own = self.tls if self._had_certificate else None
        return configuration, Identity(header, certificate, own, lifetime)

    def _header(self, configuration: Configuration) -> str | None:
        # The package leaves the end of a token file's line in it.
        header = (configuration.api_key.get("BearerToken") or "").strip() or None
        if self.user is None:
            return None
        if self._has_token_file():
            said = f"{self.user.path}: user {self.user.name!r}: its tokenFile"
            # Whoever writes the file may be about to; without a token one would be nobody.
            if header in (None, "Bearer"):
                raise CredentialsError(f"{said} is empty")
            if header is not None and not (header.isascii() and header.isprintable()):
                raise CredentialsError(f"{said} must hold one line of ASCII characters")
        if header is None and "username" in self.user.value and "exec" not in self.user.value:
            # As kubectl: without a password an empty one; the package would show nobody, and not UTF-8.
            pair = f"{self.user.value['username']}:{self.user.value.get('password', '')}"
            header = "Basic " + base64.b64encode(pair.encode(errors="replace")).decode()
        return header

    def _loader(self, answer: ExecAnswer | None, folder: str) -> KubeConfigLoader:
        """Of this context alone."""
        user: dict[str, Any] = {}
        if answer is not None:
            user = dict(answer.user)
        elif self.user is not None:
            user = _absolute(self.user)
            if (provider := user.pop("auth-provider", None)) and self._provider is not None:
                user["token"] = self._provider.id_token
            # The package takes the other one.
            dropped = ("tokenFile",) if provider else ("token",) if self._has_token_file() else ()
            for key in (*dropped, "username", "password"):
                user.pop(key, None)
        config = {
            "contexts": [{"name": "one", "context": {"cluster": "one", "user": "one"}}],
            "clusters": [{"name": "one", "cluster": _absolute(self.cluster)}],
            "users": [{"name": "one", "user": user}],
        }
        return KubeConfigLoader(config_dict=config, active_context="one", temp_file_path=folder)

    def _identity_provider(self, user: Part) -> Provider | None:
        if "auth-provider" not in user.value or "exec" in user.value:
            return None
        try:
            return read_provider(user.value["auth-provider"].get("config") or {})
        except ValueError as error:
            raise CredentialsError(f"{user.path}: user {user.name!r}: {error}") from None

    def _ask_provider(self) -> float:
        """Have a token that is valid; until when it is, in seconds since 1970. Raises `CredentialsError` and
        `OSError`."""
        assert self._provider is not None and self.user is not None
        try:
            if self._provider.due(time.time()):
                self._provider = refreshed(self._provider, lambda url: proxy_of(url, self._environment))
                # As kubectl does: an identity provider may take back a refresh token that was used.
                kept = {"id-token": self._provider.id_token, "refresh-token": self._provider.refresh_token}
                keep_tokens(self.user, kept)
        except ValueError as error:
            said = f"{self.user.path}: user {self.user.name!r}"
            raise CredentialsError(f"{said}: the identity provider gives no token: {error}") from None
        return self._provider.ends

    def _run_command(self) -> ExecAnswer | None:
        """What the user's credential command answers; None without a command."""
        if self.user is None or self.user.value.get("exec") is None:
            return None
        said = f"{self.user.path}: user {self.user.name!r}:"
        try:
            command = read_config(self.user.value["exec"])
        except ValueError as error:
            raise CredentialsError(f"{said} {error}") from None
        said = f"{said} exec {command.program}:"
        try:
            printed = run_command(command, self.user.folder, self.cluster.value)
            return read_credential(printed, command.api_version)
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
            if file:
                # Before the package, for which OpenSSL would ask for a pass phrase on the terminal.
                key = configuration.key_file or None
                ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_cert_chain(file, key, _pass_phrase)
            self.tls, self._certificate = new_tls(configuration), certificate
        return certificate


def _pass_phrase() -> str:
    """Of a client key that has one. Raises `ValueError`."""
    raise ValueError(
        "the client key has a pass phrase, which is not asked for: name a key without one, as this makes it:"
        " openssl pkey -in KEY -out PLAIN"
    )


def _absolute(part: Part) -> dict[str, Any]:
    """What it says, its files as absolute paths: each is relative to the file that names it."""
    return {key: str(part.folder / said) if key in _FILES else said for key, said in part.value.items()}


def _proxy(where: str, server: str, named: str | None, environment: Mapping[str, str]) -> str | None:
    """The proxy of the kubeconfig, else of the environment."""
    try:
        return named or proxy_of(server, environment)
    except ValueError as error:
        raise CredentialsError(f"{where}: {error}") from None
