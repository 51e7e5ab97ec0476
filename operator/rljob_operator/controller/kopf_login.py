"""As whom kopf speaks to the API server.

Guarantees:
- each of kopf's requests is sent as whoever is logged in then, with the certificates of then; its logins are
  those of all requests of the process;
- a connection is as whoever it began as: with another certificate there is another session, and the one
  before is closed;
- no error that kopf logs holds the password of a proxy;
- where the server goes on refusing, or a login fails, kopf asks again after a wait that grows.
"""

import asyncio
import ssl
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from random import Random
from types import TracebackType
from typing import Any, NoReturn, Self

import aiohttp
import kopf
from aiohttp import ClientHandlerType, ClientRequest, ClientResponse
from yarl import URL

from rljob_client.backoff import Failures
from rljob_client.credentials import Credentials, CredentialsError
from rljob_client.identity import Identity
from rljob_client.passwords import without_passwords
from rljob_client.retry import PATIENT_BACKOFF
from rljob_operator.controller.kopf_answers import ShallowAnswer

_SOON_SECONDS = 60.0
"""A session that lasted for longer was of use."""


class KopfLogin:
    """What kopf's login handler gives. Use as a context manager: at its end the session is closed."""

    def __init__(
        self, credentials: Credentials, random: Random, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._credentials = credentials
        self._early = Failures(PATIENT_BACKOFF, random)
        self._clock = clock
        self._began: float | None = None
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._close()

    async def log_in(self, **_: Any) -> kopf.AiohttpSession:
        """kopf calls it at the start, and when the session it has is closed, refused or past its time."""
        await self._close()
        if self._began is not None and self._clock() - self._began < _SOON_SECONDS:
            await asyncio.sleep(self._early.failed())
        else:
            self._early.worked()
        self._began = self._clock()
        login = self._credentials.authorization
        try:
            who = None if login is None else await login.identity(newest=True)
        except CredentialsError as error:
            # Its next call is early, and waits.
            raise kopf.TemporaryError(str(error), delay=0) from None
        self._session = self._made(self._credentials.tls_of(who))
        return kopf.AiohttpSession(
            server=self._credentials.server,
            aiohttp_session=self._session,
            default_namespace=self._credentials.namespace,
            expiration=self._expiration(who),
        )

    def _expiration(self, who: Identity | None) -> datetime | None:
        """When kopf is to have another session; None: never, since each request has its own token."""
        login = self._credentials.authorization
        if login is None or who is None or who.tls is None or (left := login.renewed_in()) is None:
            return None
        return datetime.now(UTC) + timedelta(seconds=left)

    def _made(self, tls: ssl.SSLContext | None) -> aiohttp.ClientSession:
        async def as_whoever_is_logged_in(
            request: ClientRequest, handler: ClientHandlerType
        ) -> ClientResponse:
            # A redirect would carry the token to another host.
            if request.url.origin() != URL(self._credentials.server).origin():
                return await handler(request)
            return await self._send(request, handler, session, tls)

        session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, ssl=tls or False),
            response_class=ShallowAnswer,
            headers=self._credentials.headers,
            proxy=self._credentials.proxy,
            middlewares=(as_whoever_is_logged_in,),
        )
        return session

    async def _send(
        self,
        request: ClientRequest,
        handler: ClientHandlerType,
        session: aiohttp.ClientSession,
        tls: ssl.SSLContext | None,
    ) -> ClientResponse:
        login, authority = self._credentials.authorization, self._credentials.authority
        try:
            who = None if login is None else await login.identity()
            await self._show(who, request, session, tls)
            response = await handler(request)
            if response.status == 401 and login is not None and who is not None:
                # The whole of it, so that its connection is free and kopf can still read it.
                await response.read()
                if (other := await login.other(who)) is not None:
                    await self._show(other, request, session, tls)
                    response = await handler(request)
            return response
        except (aiohttp.ClientConnectionError, aiohttp.ClientHttpProxyError) as error:
            unknown = isinstance(error, aiohttp.ClientConnectorCertificateError)
            if unknown and authority and tls and await asyncio.to_thread(authority.changed, tls):
                await _begin_anew(session, "the certificate authority has been rotated")
            raise _NoConnection(without_passwords(str(error) or type(error).__name__)) from None
        except CredentialsError as error:
            await _begin_anew(session, str(error))

    async def _show(
        self,
        who: Identity | None,
        request: ClientRequest,
        session: aiohttp.ClientSession,
        tls: ssl.SSLContext | None,
    ) -> None:
        if self._credentials.tls_of(who) is not tls:
            await _begin_anew(session, "the certificate has been renewed")
        request.server_hostname = self._credentials.server_name
        if who is not None and who.header is not None:
            request.headers["Authorization"] = who.header
        # kopf has closed it while this request waited for a login: another one of its requests was refused.
        # aiohttp would fail an assertion, which kopf takes for a defect.
        if session.closed:
            raise RuntimeError("the session was closed")

    async def _close(self) -> None:
        if self._session is not None:
            await self._session.close()
            self._session = None


class _NoConnection(aiohttp.ClientConnectionError):
    """In place of aiohttp's errors: kopf logs the whole of those, which have a proxy's URL and headers, and
    ends where it is a proxy that refuses."""

    def __repr__(self) -> str:
        return str(self)


async def _begin_anew(session: aiohttp.ClientSession, why: str) -> NoReturn:
    """Have kopf log in again: it does where its session is closed."""
    await session.close()
    raise RuntimeError(why) from None
