"""kopf, and servers that do not take what it shows."""

import asyncio
import base64
import logging
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from random import Random

import pytest

from rljob_client.credentials import AuthorityFile, Credentials, find_credentials
from rljob_operator.controller.kopf_events import watch_jobs
from rljob_operator.controller.kopf_login import KopfLogin
from tests.support.operator.certificates import Authority
from tests.support.operator.credential_command import Command, shown
from tests.support.operator.kubeconfig import write_kubeconfig
from tests.support.operator.strict_server import strict_server

GROUP = "/apis/rljob.dev/v1alpha1"
VERSION = {"groupVersion": "rljob.dev/v1alpha1", "version": "v1alpha1"}
VERBS = {"verbs": ["list", "watch", "patch"]}
NAMESPACES = {"name": "namespaces", "kind": "Namespace", "singularName": "namespace", "namespaced": False}
RLJOBS = {"name": "rljobs", "kind": "RLJob", "singularName": "rljob", "namespaced": True}
JOB = {"metadata": {"name": "a", "namespace": "team", "uid": "u", "resourceVersion": "5"}}
DOCUMENTS = {
    "/version": {"major": "1", "minor": "34"},
    "/api": {"versions": ["v1"]},
    "/api/v1": {"resources": [NAMESPACES | VERBS]},
    "/apis": {"groups": [{"name": "rljob.dev", "versions": [VERSION], "preferredVersion": VERSION}]},
    GROUP: {"resources": [RLJOBS | VERBS]},
    f"{GROUP}/namespaces/team/rljobs": {"metadata": {"resourceVersion": "5"}, "items": [JOB]},
}


@pytest.fixture
def command(tmp_path):
    return Command(tmp_path)


@pytest.fixture
def authority(tmp_path):
    return Authority(tmp_path)


@asynccontextmanager
async def watched(credentials):
    """kopf at work, in a loop of its own, whose tasks it ends; gives a queue of the jobs that it tells of."""
    heard, begun, here = asyncio.Queue(), asyncio.Queue(), asyncio.get_running_loop()

    def tell(queue, *what):
        here.call_soon_threadsafe(queue.put_nowait, what)

    async def finish():
        pass

    async def watch():
        stop = asyncio.Event()
        tell(begun, asyncio.get_running_loop(), stop)
        await watch_jobs(
            lambda job: tell(heard, job["metadata"]["name"]), credentials, "team", stop, finish, lambda: None
        )

    watching = asyncio.create_task(asyncio.to_thread(asyncio.run, watch()))
    loop, stop = await begun.get()
    try:
        yield heard
    finally:
        if not watching.done():
            loop.call_soon_threadsafe(stop.set)
        await asyncio.wait_for(watching, 30.0)


async def hears(heard):
    assert await asyncio.wait_for(heard.get(), 20.0) == ("a",)


async def test_a_token_that_is_refused_is_asked_for_again(tmp_path, command):
    async with strict_server("Bearer new") as server:
        server.documents = DOCUMENTS
        user = command.answers({"token": "old"}, {"token": "new"}, {"token": "third"})
        path = write_kubeconfig(tmp_path / "config", {"server": server.url}, user)
        async with watched(find_credentials(path)) as heard:
            await hears(heard)
        assert len(command.asked) == 2


@pytest.mark.parametrize("refused", [True, False], ids=["refused", "past its time"])
async def test_a_certificate_is_asked_for_again(tmp_path, command, authority, refused, caplog):
    async with strict_server("old", "new", authority=authority) as server:
        server.documents = DOCUMENTS
        soon = (
            {} if refused else {"expirationTimestamp": (datetime.now(UTC) + timedelta(seconds=6)).isoformat()}
        )
        user = command.answers(shown(authority.sign("old")) | soon, shown(authority.sign("new")))
        cluster = {"server": server.url, "certificate-authority": str(authority.certificate)}
        async with watched(find_credentials(write_kubeconfig(tmp_path / "config", cluster, user))) as heard:
            await hears(heard)
            assert set(server.seen) == {"old"}
            if refused:
                server.known = {"new"}
            else:
                await asyncio.sleep(4.0)
            # The server ends the watch, as it does every few minutes.
            server.cut()
            while await asyncio.wait_for(server.came.get(), 20.0) != "new":
                pass
        assert len(command.asked) == 2
        assert ("will re-authenticate" in caplog.text) == refused


async def test_a_server_that_goes_on_refusing_is_asked_ever_less_often(tmp_path, command, caplog):
    async with strict_server() as server:
        user = command.answers(*({"token": f"hidden{number}"} for number in range(100)))
        path = write_kubeconfig(tmp_path / "config", {"server": server.url}, user)
        credentials = find_credentials(path)
        with caplog.at_level(logging.DEBUG):
            async with watched(credentials):
                await asyncio.sleep(2.0)
        # kopf begins with three requests.
        assert 3 <= len(server.seen) <= 20
        assert len(command.asked) <= 6
        assert "hidden" not in caplog.text


async def test_a_request_whose_session_is_closed_while_a_login_is_waited_for(tmp_path, command, monkeypatch):
    """kopf closes it when another of its requests is refused. It logs in anew for a `RuntimeError` alone."""
    async with strict_server("Bearer new") as server:
        path = write_kubeconfig(
            tmp_path / "config", {"server": server.url}, command.answers({"token": "new"})
        )
        credentials = find_credentials(path)
        async with KopfLogin(credentials, Random(0)) as login:
            session = (await login.log_in()).aiohttp_session
            who, asked, go_on = await credentials.authorization.identity(), asyncio.Event(), asyncio.Event()

            async def identity():
                asked.set()
                await go_on.wait()
                return who

            monkeypatch.setattr(credentials.authorization, "identity", identity)
            request = asyncio.create_task(session.get(f"{server.url}/api"))
            await asked.wait()
            await session.close()
            go_on.set()
            with pytest.raises(RuntimeError, match="session was closed"):
                await request
        assert server.seen == []


async def test_a_login_that_fails_is_tried_again(tmp_path, command):
    async with strict_server("Bearer new") as server:
        server.documents = DOCUMENTS
        user = command.answers({"token": "old"}, {"token": "old"}, {"token": "new"})
        path = write_kubeconfig(tmp_path / "config", {"server": server.url}, user)
        credentials = find_credentials(path)
        command.fails("run sso login")
        async with watched(credentials) as heard:
            # The old token was refused, and the command has failed.
            await asyncio.sleep(1.0)
            command.fails(None)
            await hears(heard)
        assert len(command.asked) <= 6


async def test_a_rotated_authority_is_read_again(tmp_path, authority):
    (tmp_path / "other").mkdir()
    file = tmp_path / "ca.crt"
    file.write_bytes(Authority(tmp_path / "other").certificate.read_bytes())
    async with strict_server("nobody", authority=authority, anybody=True) as server:
        server.documents = DOCUMENTS
        rotated = AuthorityFile(file)
        async with watched(Credentials(server.url, rotated.tls, authority=rotated)) as heard:
            await asyncio.sleep(0.5)
            file.write_bytes(authority.certificate.read_bytes())
            await hears(heard)


async def test_the_name_that_a_certificate_must_bear(tmp_path, authority, caplog):
    async with strict_server("nobody", authority=authority, anybody=True) as server:
        files = {"certificate-authority": str(authority.certificate), "tls-server-name": "kubernetes"}
        path = write_kubeconfig(tmp_path / "config", {"server": server.url, **files})
        async with watched(find_credentials(path)):
            await asyncio.sleep(0.5)
        assert "not valid for 'kubernetes'" in caplog.text
        assert server.seen == []


@pytest.mark.parametrize("away", [False, True], ids=["refuses", "is away"])
async def test_the_password_of_a_proxy_is_not_logged(caplog, away):
    asked = asyncio.Queue()

    async def refuse(reader, writer):
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 407 Who are you\r\nContent-Length: 0\r\n\r\n")
        await writer.drain()
        writer.close()
        asked.put_nowait("a request")

    server = await asyncio.start_server(refuse, "127.0.0.1", 0)
    async with server:
        proxy = "127.0.0.1:1" if away else f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
        with caplog.at_level(logging.DEBUG):
            credentials = Credentials("https://api.invalid", None, proxy=f"http://me:Passw0rd@{proxy}")
            async with watched(credentials):
                if away:
                    await asyncio.sleep(1.0)
                else:
                    # kopf goes on: it begins with three requests, and tries them again.
                    for _ in range(6):
                        await asyncio.wait_for(asked.get(), 20.0)
    assert ("Connect call failed" if away else "407") in caplog.text
    assert "Passw0rd" not in caplog.text
    assert base64.b64encode(b"me:Passw0rd").decode() not in caplog.text
