"""The proxy on the way to a server, by the environment. Pure."""

from collections.abc import Mapping
from ipaddress import ip_address
from urllib.parse import urlsplit

from requests.utils import should_bypass_proxies

from rljob_client.kubeconfig_fields import url_fault


def proxy_of(url: str, environment: Mapping[str, str]) -> str | None:
    """That of HTTPS_PROXY (HTTP_PROXY for http) and NO_PROXY, which never count for this machine; None where
    there is none. Raises `ValueError` for one that cannot be used, without its password."""
    parts = urlsplit(url)
    if is_here(parts.hostname or ""):
        return None
    found = environment.get(f"{parts.scheme}_proxy") or environment.get(f"{parts.scheme.upper()}_PROXY")
    # Of no other places: `requests` would ask the system's settings, too.
    unless = environment.get("no_proxy") or environment.get("NO_PROXY") or ""
    if not found or should_bypass_proxies(url, unless):
        return None
    if (wrong := url_fault(found)) is not None:
        raise ValueError(f"the proxy of the environment {wrong}; SOCKS is not supported")
    return found


def is_here(host: str) -> bool:
    """Whether it is a name or an address of this machine's own."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
