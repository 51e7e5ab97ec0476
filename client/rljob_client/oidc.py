"""What a kubeconfig says of an identity provider (`auth-provider` named oidc), and what that answers. Pure.

Guarantees: whatever they say is understood, or refused with the key and what is allowed; no error holds a
secret. As for kubectl, a client without a secret is asked for as a public one, and a kubeconfig without an ID
token, as it is before the first login, is one whose token has ended.
"""

import base64
import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any
from urllib.parse import quote_plus, urlencode, urljoin, urlsplit

from rljob_client.proxy import is_here

EARLY_SECONDS = 120.0
"""A token that is valid for less is asked for anew; more than the minute before the end in which
`shared_login.py` wants another one."""
_ENDED_SECONDS = 10.0
"""One that is valid for less has ended, as for kubectl."""
_CODES = frozenset(
    [
        "invalid_request",
        "invalid_client",
        "invalid_grant",
        "unauthorized_client",
        "unsupported_grant_type",
        "invalid_scope",
    ]
)
"""Of errors, RFC 6749, 5.2. What else stands beside them may be secret."""


@dataclass(frozen=True)
class Provider:
    """The `config` of an `auth-provider`."""

    issuer: str
    """URL without a trailing slash."""
    client_id: str
    client_secret: str = field(default="", repr=False)
    """Empty for a public client."""
    refresh_token: str = field(default="", repr=False)
    """Empty where there is none."""
    id_token: str = field(default="", repr=False)
    """Empty where there is none."""
    ends: float = 0.0
    """Until when `id_token` is valid, in seconds since 1970."""
    authority: str = ""
    """File of the authorities that sign the provider's certificate; empty where none is named."""
    authority_data: str = field(default="", repr=False)
    """The same as base64 of PEM, which goes first."""

    def due(self, now: float) -> bool:
        """Whether to ask for another token at this time, in seconds since 1970. Raises `ValueError` where one
        must be had and cannot be asked for."""
        if self.refresh_token:
            return self.ends - now < EARLY_SECONDS
        if self.ends - now < _ENDED_SECONDS:
            found = "its id-token has ended" if self.id_token else "id-token is missing"
            raise ValueError(f"{found}, and there is no refresh-token to get another one with: log in anew")
        return False

    def with_tokens(self, id_token: str, refresh_token: str) -> "Provider":
        """The same after an answer."""
        return replace(
            self,
            id_token=id_token,
            ends=token_ends(id_token),
            refresh_token=refresh_token or self.refresh_token,
        )


def read_provider(config: Mapping[str, Any]) -> Provider:
    """The value of `auth-provider.config`. Raises `ValueError`."""

    def text(key: str) -> str:
        value = config.get(key)
        if value is not None and not isinstance(value, str):
            raise ValueError(f"auth-provider.config.{key} must be text: a number, yes or no stands in quotes")
        return value or ""

    for key in ("idp-issuer-url", "client-id"):
        if not text(key):
            raise ValueError(f"auth-provider.config.{key} is missing")
    issuer, id_token = text("idp-issuer-url").rstrip("/"), text("id-token")
    if not _is_safe(issuer):
        raise ValueError(f"auth-provider.config.idp-issuer-url must be {_SAFE}")
    try:
        ends = token_ends(id_token) if id_token else 0.0
    except ValueError as error:
        raise ValueError(f"auth-provider.config.id-token {error}") from None
    return Provider(
        issuer,
        text("client-id"),
        text("client-secret"),
        text("refresh-token"),
        id_token,
        ends,
        text("idp-certificate-authority"),
        text("idp-certificate-authority-data"),
    )


def token_ends(id_token: str) -> float:
    """Until when an ID token is valid, in seconds since 1970; 0 for one that does not say it, which kubectl
    takes for one that has ended. Raises `ValueError`."""
    parts = id_token.split(".")
    try:
        if len(parts) != 3 or not all(" " < character <= "~" for character in id_token):
            raise ValueError
        # A character that is none of base64 would be left out.
        content = base64.b64decode(parts[1] + "=" * (-len(parts[1]) % 4), altchars=b"-_", validate=True)
        said = json.loads(content)
        if not isinstance(said, Mapping):
            raise ValueError
    except (ValueError, RecursionError):
        raise ValueError("must be a JSON Web Token") from None
    ends = said.get("exp") or 0
    try:
        if isinstance(ends, (int, float)) and math.isfinite(ends):
            return float(ends)
    except OverflowError:
        pass
    raise ValueError('must be a JSON Web Token whose "exp" is a number of seconds')


def configuration_url(provider: Provider) -> str:
    """Where the provider says how it is asked."""
    return f"{provider.issuer}/.well-known/openid-configuration"


def redirected(url: str, location: str | None) -> str | None:
    """Where an answer from `url` sends whoever asks, which for a question without a secret is followed; None
    where it sends him nowhere, or where the answer could be anybody's."""
    try:
        found = urljoin(url, location) if location else ""
    except ValueError:
        return None
    return found if _is_safe(found) else None


def read_configuration(status: int, body: bytes) -> str:
    """Where tokens are had, by an answer from `configuration_url`. Raises `ValueError`."""
    where = "/.well-known/openid-configuration of idp-issuer-url"
    if status != 200:
        raise ValueError(f"{where} answers HTTP {status}, and must answer 200")
    endpoint = (_mapping(body) or {}).get("token_endpoint")
    if not isinstance(endpoint, str) or not _is_safe(endpoint):
        raise ValueError(f"token_endpoint in {where} must be {_SAFE}")
    return endpoint


def questions(provider: Provider) -> Iterator[tuple[dict[str, str], bytes]]:
    """Headers and body of what the token endpoint is asked, in the ways that providers want it, one after
    the other until one is answered."""
    asked = {"grant_type": "refresh_token", "refresh_token": provider.refresh_token}
    headers = {"Content-Type": "application/x-www-form-urlencoded", "Accept": "application/json"}
    if provider.client_secret:
        # RFC 6749, 2.3.1: all providers must take this one, and some do not.
        pair = f"{quote_plus(provider.client_id)}:{quote_plus(provider.client_secret)}"
        basic = "Basic " + base64.b64encode(pair.encode()).decode()
        yield {**headers, "Authorization": basic}, urlencode(asked).encode()
        asked["client_secret"] = provider.client_secret
    yield headers, urlencode({**asked, "client_id": provider.client_id}).encode()


def asked_otherwise(status: int, body: bytes) -> bool:
    """Whether this answer may be another one if it is asked for in another way."""
    return 400 <= status < 500 and _code(body) != "invalid_grant"


def read_tokens(provider: Provider, status: int, body: bytes) -> Provider:
    """With the tokens that the token endpoint answers. Raises `ValueError`."""
    if status != 200:
        code = _code(body)
        hint = "; log in anew" if code == "invalid_grant" else ""
        raise ValueError(f"its token_endpoint answers HTTP {status}" + (f" ({code})" if code else "") + hint)
    said = _mapping(body) or {}
    id_token, refresh_token = said.get("id_token"), said.get("refresh_token") or ""
    if not isinstance(id_token, str):
        raise ValueError("its token_endpoint answers no id_token: the login must ask for the scope openid")
    if not isinstance(refresh_token, str):
        raise ValueError("the refresh_token that its token_endpoint answers must be text")
    try:
        return provider.with_tokens(id_token, refresh_token)
    except ValueError as error:
        raise ValueError(f"the id_token that its token_endpoint answers {error}") from None


_SAFE = "an https URL without a user name; http is for this machine alone"


def _is_safe(url: str) -> bool:
    """Whether a secret may be sent there."""
    try:
        found = urlsplit(url)
        found.port  # noqa: B018 - it is read when it is asked for
    except ValueError:
        return False
    host = found.hostname or ""
    if not host or "@" in found.netloc or not all("!" <= character <= "~" for character in url):
        return False
    return found.scheme == "https" or (found.scheme == "http" and is_here(host))


def _code(body: bytes) -> str:
    code = (_mapping(body) or {}).get("error")
    return code if isinstance(code, str) and code in _CODES else ""


def _mapping(body: bytes) -> Mapping[str, Any] | None:
    try:
        said = json.loads(body)
    except (ValueError, RecursionError):
        return None
    return said if isinstance(said, Mapping) else None
