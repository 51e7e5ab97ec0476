"""What a kubeconfig may say of a cluster, a context and a user. Pure.

Guarantees: what kubectl would not take, or what no request could hold, is refused with its key and what is
allowed; no error holds a value.
"""

import base64
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple
from urllib.parse import quote, urlsplit

_HTTP_NAME = "!#$&'*+^`|"
"""Beside letters, digits and `_.-~`, which `quote` leaves: what the name of a header may hold, RFC 9110,
5.6.2, but for `%`, by which the others are written."""


class _Kind(NamedTuple):
    allowed: str
    fits: Callable[[Any], bool]


def _is_line(value: Any) -> bool:
    return isinstance(value, str) and value.isprintable()


def _is_lines(value: Any) -> bool:
    return isinstance(value, list) and all(map(_is_line, value))


def _is_base64(value: Any) -> bool:
    try:
        return isinstance(value, str) and base64.b64decode(value) is not None
    except ValueError:
        return False


_TEXT = _Kind("text: a number, yes or no stands in quotes", lambda value: isinstance(value, str))
_LINE = _Kind("one line of text: a number, yes or no stands in quotes", _is_line)
_ASCII = _Kind("one line of ASCII characters", lambda value: _is_line(value) and value.isascii())
_BASE64 = _Kind("text of base64", _is_base64)
_LINES = _Kind("a list of texts of one line", _is_lines)
_YES_NO = _Kind("true or false, without quotes", lambda value: isinstance(value, bool))
_LIST = _Kind("a list", lambda value: isinstance(value, list))
_MAPPING = _Kind("a mapping", lambda value: isinstance(value, Mapping))
_EXTRA = _Kind(
    "a mapping of names to lists of texts of one line",
    lambda value: (
        isinstance(value, Mapping) and all(map(_is_line, value)) and all(map(_is_lines, value.values()))
    ),
)

_CLUSTER = {
    "server": _TEXT,
    "tls-server-name": _LINE,
    "insecure-skip-tls-verify": _YES_NO,
    "certificate-authority": _TEXT,
    "certificate-authority-data": _BASE64,
    "proxy-url": _TEXT,
    "extensions": _LIST,
}
_CONTEXT = {"cluster": _TEXT, "user": _TEXT, "namespace": _LINE}
_USER = {
    "client-certificate": _TEXT,
    "client-certificate-data": _BASE64,
    "client-key": _TEXT,
    "client-key-data": _BASE64,
    "token": _ASCII,
    "tokenFile": _TEXT,
    "as": _LINE,
    "as-uid": _LINE,
    "as-groups": _LINES,
    "as-user-extra": _EXTRA,
    "username": _TEXT,
    "password": _TEXT,
    "auth-provider": _MAPPING,
}


def check_context(context: Mapping[str, Any]) -> None:
    """Raises `ValueError`."""
    _check(context, _CONTEXT)


def check_cluster(cluster: Mapping[str, Any]) -> None:
    """Raises `ValueError`."""
    _check(cluster, _CLUSTER)
    if (wrong := url_fault(cluster.get("server", ""))) is not None:
        raise ValueError(f"server {wrong}")
    if "@" in urlsplit(cluster["server"]).netloc:
        raise ValueError("server must hold no user name and no password: who speaks is said under users")
    if (wrong := url_fault(cluster.get("proxy-url", "http://none"))) is not None:
        raise ValueError(f"proxy-url {wrong}; SOCKS is not supported")


def check_user(user: Mapping[str, Any]) -> None:
    """Raises `ValueError`."""
    _check(user, _USER)
    if provider := user.get("auth-provider"):
        if provider.get("name") != "oidc":
            raise ValueError(
                f"auth-provider {provider.get('name')!r} is not supported; allowed: oidc, or the provider's"
                " command under exec"
            )
        if not isinstance(provider.get("config") or {}, Mapping):
            raise ValueError("auth-provider.config must be a mapping")
    others = [key for key in ("as-uid", "as-groups", "as-user-extra") if user.get(key)]
    if others and not user.get("as"):
        raise ValueError(f"as is missing: {others[0]} goes with it")


def url_fault(url: str) -> str | None:
    """What is wrong with the URL of a server or a proxy; None: nothing."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        parts, port = None, None
    begins = url.startswith(("https://", "http://"))
    if parts is None or not begins or not all("!" <= each <= "~" for each in url):
        return "must be an http(s) URL of ASCII characters, its port a number up to 65535"
    if port == 0 or not _is_host(parts.hostname or ""):
        return "must be an http(s) URL with a host, whose names have up to 63 characters, and a port above 0"
    return None


def _is_host(host: str) -> bool:
    # The last one is empty where the name ends in a dot.
    labels = host.removesuffix(".").split(".")
    return len(host) <= 253 and all(1 <= len(label) <= 63 for label in labels)


def impersonation(user: Mapping[str, Any]) -> tuple[tuple[str, str], ...]:
    """The headers for `as`, `as-uid`, `as-groups` and `as-user-extra`, as kubectl writes them."""
    named = (("as", "Impersonate-User"), ("as-uid", "Impersonate-Uid"))
    found = [(header, user[key]) for key, header in named if key in user]
    found += [("Impersonate-Group", group) for group in user.get("as-groups", ())]
    for key, values in user.get("as-user-extra", {}).items():
        found += [(f"Impersonate-Extra-{quote(key, safe=_HTTP_NAME)}", value) for value in values]
    return tuple(found)


def _check(part: Mapping[str, Any], kinds: Mapping[str, _Kind]) -> None:
    for key, kind in kinds.items():
        if key in part and not kind.fits(part[key]):
            raise ValueError(f"{key} must be {kind.allowed}")
