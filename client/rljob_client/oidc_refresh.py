"""Asks an identity provider for another token.

Guarantees: it ends within its time limit; no secret goes to whom the authorities do not know, to another
place by a redirect, into a log line or into an error.
"""

import base64
import ssl
import threading
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from urllib.parse import unquote, urlsplit

import certifi
import urllib3
from urllib3.exceptions import HTTPError, NewConnectionError, ProxyError, SSLError

from rljob_client.oidc import (
    Provider,
    asked_otherwise,
    configuration_url,
    questions,
    read_configuration,
    read_tokens,
    redirected,
)

_SECONDS = 10.0
"""For everything that is asked."""
_LONGEST_ANSWER = 1024 * 1024
"""Bytes; providers answer with a few thousand."""

_MOST_REDIRECTS = 3


def refreshed(provider: Provider, proxy_of: Callable[[str], str | None]) -> Provider:
    """With the tokens that it gives for the refresh token. `proxy_of`: the proxy on the way to a URL. Raises
    `OSError` where its authorities cannot be read, and `ValueError` where it gives none."""
    tls = _tls(provider)
    done: Future[Provider] = Future()

    def ask() -> None:
        try:
            done.set_result(_asked(provider, tls, proxy_of))
        except HTTPError as error:
            done.set_exception(ValueError(_why(error)))
        except ValueError as error:
            done.set_exception(error)
        except BaseException as error:
            # A defect, which is told here, too.
            done.set_exception(error)
            raise

    # Of its own, since nothing else bounds looking for a name, and an answer that comes byte by byte.
    threading.Thread(target=ask, name="identity-provider", daemon=True).start()
    try:
        return done.result(_SECONDS)
    except TimeoutError:
        raise ValueError(f"{provider.issuer} has not answered within {_SECONDS:g} s") from None


def _asked(provider: Provider, tls: ssl.SSLContext, proxy_of: Callable[[str], str | None]) -> Provider:
    url: str | None = configuration_url(provider)
    for _ in range(1 + _MOST_REDIRECTS):
        if url is not None:
            status, answer, location = _send("GET", url, {}, None, tls, proxy_of)
            url = redirected(url, location)
    endpoint = read_configuration(status, answer)
    for headers, body in questions(provider):
        status, answer, _ = _send("POST", endpoint, headers, body, tls, proxy_of)
        if not asked_otherwise(status, answer):
            break
    return read_tokens(provider, status, answer)


def _send(
    method: str,
    url: str,
    headers: dict[str, str],
    body: bytes | None,
    tls: ssl.SSLContext,
    proxy_of: Callable[[str], str | None],
) -> tuple[int, bytes, str | None]:
    """HTTP status and body of the answer, and for a redirect, where to."""
    with _pool(url, tls, proxy_of) as pool:
        answer = pool.request(
            method,
            url,
            body=body,
            headers=headers,
            timeout=_SECONDS,
            retries=False,
            redirect=False,
            preload_content=False,
        )
        return answer.status, answer.read(_LONGEST_ANSWER), answer.get_redirect_location() or None


def _pool(url: str, tls: ssl.SSLContext, proxy_of: Callable[[str], str | None]) -> urllib3.PoolManager:
    if (proxy := proxy_of(url)) is None:
        return urllib3.PoolManager(ssl_context=tls)
    parts = urlsplit(proxy)
    who = f"{unquote(parts.username or '')}:{unquote(parts.password or '')}"
    shown = urllib3.make_headers(proxy_basic_auth=who) if parts.username else None
    return urllib3.ProxyManager(proxy, proxy_headers=shown, ssl_context=tls)


def _tls(provider: Provider) -> ssl.SSLContext:
    key = "idp-certificate-authority" + ("-data" if provider.authority_data else "")
    try:
        if provider.authority_data:
            known = base64.b64decode(provider.authority_data).decode("ascii")
        else:
            known = Path(provider.authority or certifi.where()).read_text("ascii")
        return ssl.create_default_context(cadata=known)
    except (ValueError, ssl.SSLError):
        raise ValueError(f"auth-provider.config.{key} holds no certificates as PEM") from None


def _why(error: HTTPError) -> str:
    """In words that hold nothing of what was sent."""
    if isinstance(error, SSLError):
        return f"its certificate is not accepted, or it speaks no TLS: {error}"
    if isinstance(error, ProxyError):
        return "the proxy gives no connection to it"
    if isinstance(error, NewConnectionError):
        return "it cannot be connected to"
    return f"the connection to it broke: {type(error).__name__}"
