"""Logins by commands that run, for requests to servers that are strict."""

import asyncio
import threading
from base64 import b64encode
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from rljob_client import connections
from rljob_client.credentials import find_credentials
from rljob_client.errors import NoCredentials, Unauthorized, Unreachable
from rljob_client.resources import PODS
from rljob_client.transport import Call, Transport, Uncounted
from tests.support.operator.certificates import Authority
from tests.support.operator.credential_command import Command, shown
from tests.support.operator.kubeconfig import write_kubeconfig
from tests.support.operator.strict_server import BOOKMARK, strict_server

CALL = Call("list", PODS, PODS.path("team"))
WATCH = Call("watch", PODS, PODS.path("team"), (("watch", "true"),))
OLD, NEW = {"token": "old"}, {"token": "new"}


@pytest.fixture
def command(tmp_path):
    return Command(tmp_path)


@pytest.fixture
def authority(tmp_path):
    return Authority(tmp_path)


@asynccontextmanager
async def transport_to(server, user, tmp_path, clock=None, **cluster):
    path = write_kubeconfig(tmp_path / "config", {"server": server.url, **cluster}, user)
    credentials = find_credentials(path, **({"clock": clock} if clock else {}))
    async with Transport(credentials, Uncounted(), "test") as made:
        yield made


def send(transport, timeout=30.0):
    return transport.send(CALL, timeout)


async def outcomes(*sending):
    return await asyncio.gather(*sending, return_exceptions=True)


async def test_a_hundred_requests_that_are_refused_log_in_once(tmp_path, command):
    user = command.answers(OLD, NEW, {"token": "third"})
    async with strict_server("Bearer new") as server, transport_to(server, user, tmp_path) as transport:
        # So that all are under way with the old token before the first answer.
        server.delay = 0.3
        answers = await asyncio.gather(*(send(transport) for _ in range(100)))
        assert set(answers) == {b'{"you": "Bearer new"}'}
        assert len(command.asked) == 2


async def test_whoever_stops_waiting_ends_no_login_and_begins_none(tmp_path, command):
    async with (
        strict_server("Bearer new") as server,
        transport_to(server, command.answers(OLD, NEW), tmp_path) as transport,
    ):
        command.hold()
        patient = [asyncio.create_task(send(transport)) for _ in range(3)]
        cancelled = asyncio.create_task(send(transport))
        with pytest.raises(Unreachable, match=r"within 0\.5 s"):
            await send(transport, timeout=0.5)
        cancelled.cancel()
        await asyncio.to_thread(command.held)
        # It comes while the login is under way.
        with pytest.raises(Unreachable, match=r"the login has not ended within 0\.2 s") as caught:
            await send(transport, timeout=0.2)
        assert caught.value.without_effect
        patient.append(asyncio.create_task(send(transport)))
        await asyncio.to_thread(command.release)
        assert set(await asyncio.gather(*patient)) == {b'{"you": "Bearer new"}'}
        assert len(command.asked) == 2


async def test_a_failed_login_is_told_to_all_and_tried_again_after_a_while(tmp_path, command):
    now = [0.0]
    async with (
        strict_server("Bearer new") as server,
        transport_to(server, command.answers(OLD, OLD, NEW), tmp_path, lambda: now[0]) as transport,
    ):
        server.delay = 0.3
        command.fails("session has expired: run sso login")
        told = await outcomes(*(send(transport) for _ in range(20)))
        # Some come when it has failed already.
        for _ in range(20):
            told += await outcomes(send(transport))
        says = "exec ./login: it ended with exit code 1: session has expired: run sso login"
        assert {type(error) for error in told} == {NoCredentials}
        assert all(says in str(error) for error in told)
        assert len(command.asked) == 2
        now[0] = 1.0
        command.fails(None)
        assert set(await asyncio.gather(*(send(transport) for _ in range(20)))) == {b'{"you": "Bearer new"}'}
        assert len(command.asked) == 3


async def test_nobody_logs_in_for_each_request_of_a_user_whom_nobody_knows(tmp_path, command):
    user = command.answers(*({"token": str(number)} for number in range(50)))
    async with strict_server() as server, transport_to(server, user, tmp_path) as transport:
        for _ in range(20):
            with pytest.raises(Unauthorized, match="is not known"):
                await send(transport)
        assert len(command.asked) <= 3


async def test_event_loops_of_several_threads_share_a_login(tmp_path, command):
    async with strict_server("Bearer new") as server:
        path = write_kubeconfig(tmp_path / "config", {"server": server.url}, command.answers(OLD, NEW))
        credentials, together = find_credentials(path), threading.Barrier(4)

        async def once():
            async with Transport(credentials, Uncounted(), "test") as transport:
                together.wait(30.0)
                return await send(transport)

        server.delay = 0.3
        answers = await asyncio.gather(*(asyncio.to_thread(asyncio.run, once()) for _ in range(4)))
        assert set(answers) == {b'{"you": "Bearer new"}'}
        assert len(command.asked) == 2


async def test_a_refused_certificate_is_asked_for_again(tmp_path, command, authority, monkeypatch):
    monkeypatch.setattr(connections, "_IDLE_SECONDS", 0.2)
    old, new = authority.sign("old"), authority.sign("new")
    user = command.answers(shown(old), shown(new))
    ours = {"certificate-authority": str(authority.certificate)}
    async with (
        strict_server("old", authority=authority) as server,
        transport_to(server, user, tmp_path, **ours) as transport,
        transport.stream(WATCH, 60.0) as lines,
    ):
        assert await anext(lines) == BOOKMARK.strip()
        assert await send(transport) == b'{"you": "old"}'
        server.known = {"new"}
        server.delay = 0.2
        answers = await asyncio.gather(*(send(transport) for _ in range(20)))
        assert set(answers) == {b'{"you": "new"}'}
        assert len(command.asked) == 2
        # Of the old connections, one for each of the 20 requests and the watch, that of the watch is left.
        ended = []
        while ended.count("old") < 20:
            ended.append(await asyncio.wait_for(server.ended.get(), 10.0))
        begun, server.delay = len(server.seen), 0.0
        assert await send(transport) == b'{"you": "new"}'
        assert server.seen[begun:] == ["new"]
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(anext(lines), 0.5)


@pytest.mark.parametrize("says", ["its own end", "expirationTimestamp"])
async def test_a_certificate_is_asked_for_again_before_it_ends(tmp_path, command, authority, says):
    now = [0.0]
    until = {} if says == "its own end" else {"expirationTimestamp": "2999-01-01T00:00:00Z"}
    user = command.answers(
        shown(authority.sign("old")) | until, shown(authority.sign("new")), shown(authority.sign("newer"))
    )
    ours = {"certificate-authority": str(authority.certificate)}
    async with (
        strict_server("old", "new", "newer", authority=authority) as server,
        transport_to(server, user, tmp_path, lambda: now[0], **ours) as transport,
    ):
        # Each is valid for an hour.
        now[0] = 3530.0
        assert await send(transport) == b'{"you": "old"}'
        now[0] = 3605.0
        assert await send(transport) == (b'{"you": "new"}' if not until else b'{"you": "old"}')
        if not until:
            # It is at hand before the old one has ended: nobody waits for it.
            command.hold()
            now[0] += 3545.0
            assert await send(transport) == b'{"you": "new"}'
            await asyncio.to_thread(command.held)
            await asyncio.to_thread(command.release)
            now[0] += 60.0
            assert await send(transport) == b'{"you": "newer"}'
        assert len(command.asked) == (1 if until else 3)


@pytest.mark.parametrize("kind", ["file", "given once"])
async def test_certificates_of_files_are_read_again(tmp_path, authority, kind):
    old, new = authority.sign("old"), authority.sign("new")
    user = {"client-certificate": str(old.certificate), "client-key": str(old.key)}
    if kind != "file":
        user = {f"{name}-data": in_base64(file) for name, file in user.items()}
    ours, now = {"certificate-authority": str(authority.certificate)}, [0.0]
    async with (
        strict_server("new", authority=authority) as server,
        transport_to(server, user, tmp_path, lambda: now[0], **ours) as transport,
    ):
        with pytest.raises(Unauthorized, match="old is not known"):
            await send(transport)
        old.certificate.write_bytes(new.certificate.read_bytes())
        old.key.write_bytes(new.key.read_bytes())
        now[0] = 2.0
        if kind == "file":
            assert await send(transport) == b'{"you": "new"}'
        else:
            with pytest.raises(Unauthorized, match="old is not known"):
                await send(transport)


def in_base64(path):
    return b64encode(Path(path).read_bytes()).decode()


async def test_nothing_secret_is_shown(tmp_path, command, authority, caplog):
    own = authority.sign("old")
    user = command.answers(shown(own) | {"token": "hidden"})
    ours = {"certificate-authority": str(authority.certificate)}
    async with (
        strict_server(authority=authority) as server,
        transport_to(server, user, tmp_path, **ours) as transport,
    ):
        with pytest.raises(Unauthorized) as caught:
            await send(transport)
        login = transport._credentials.authorization
        texts = [str(caught.value), repr(transport._credentials), repr(login)]
        texts += [repr(await login.identity()), repr(vars(login)), caplog.text]
    for secret in ("hidden", own.key.read_text()[40:80], own.certificate.read_text()[40:80]):
        assert not [text for text in texts if secret in text]
