"""Single requests: who is believed, and what becomes of those that are given up."""

import asyncio
import ssl
from contextlib import asynccontextmanager

import pytest
import yaml
from aiohttp import web

from rljob_operator.kube.credentials import Credentials, from_kubeconfig
from rljob_operator.kube.errors import Unreachable
from rljob_operator.kube.resources import PODS
from rljob_operator.kube.transport import Call, Transport
from rljob_operator.metrics import OperatorMetrics
from tests.support.operator.certificates import Authority

CALL = Call("create", PODS, PODS.path("team"), body=b"{}")


@pytest.fixture
def authority(tmp_path):
    return Authority(tmp_path)


@pytest.fixture
async def server(authority):
    """An HTTPS server that lets in only who has a certificate of the authority's; tells them their name."""
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=str(authority.certificate))
    tls.verify_mode = ssl.CERT_REQUIRED
    own = authority.sign("server")
    tls.load_cert_chain(own.certificate, own.key)

    async def answer(request):
        subject = request.transport.get_extra_info("peercert")["subject"]
        return web.json_response({"you": subject[0][0][1]})

    application = web.Application()
    application.router.add_route("*", "/{path:.*}", answer)
    runner = web.AppRunner(application, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=tls).start()
    yield f"https://127.0.0.1:{runner.addresses[0][1]}"
    await runner.cleanup()


def kubeconfig(path, server, user=None, **cluster):
    config = {
        "current-context": "here",
        "contexts": [{"name": "here", "context": {"cluster": "c", "user": "u"}}],
        "clusters": [{"name": "c", "cluster": {"server": server, **cluster}}],
        "users": [{"name": "u", "user": user or {}}],
    }
    path.write_text(yaml.safe_dump(config))
    return from_kubeconfig(path)


async def send(credentials, timeout=10.0):
    async with Transport(credentials, OperatorMetrics()) as transport:
        return await transport.send(CALL, timeout)


async def test_a_client_certificate_says_who_we_are(tmp_path, authority, server):
    me = authority.sign("operator")
    user = {"client-certificate": me.certificate.name, "client-key": me.key.name}
    ours = {"certificate-authority": authority.certificate.name}
    assert await send(kubeconfig(tmp_path / "a", server, user, **ours)) == b'{"you": "operator"}'
    insecure = {"insecure-skip-tls-verify": True}
    assert await send(kubeconfig(tmp_path / "b", server, user, **insecure)) == b'{"you": "operator"}'
    with pytest.raises(Unreachable, match="certificate verify failed"):
        await send(kubeconfig(tmp_path / "c", server, user))
    with pytest.raises(Unreachable):
        await send(kubeconfig(tmp_path / "d", server, **ours))


@asynccontextmanager
async def silent_server():
    """Takes requests and never answers. Gives its address, an event that is set when a request has come, and
    how each connection ended."""
    begun, ended = asyncio.Event(), asyncio.Queue()

    async def serve(reader, writer):
        try:
            await reader.readuntil(b"\r\n\r\n{}")
            begun.set()
            ended.put_nowait(await reader.read())
        except ConnectionResetError as error:
            ended.put_nowait(type(error))
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", begun, ended


async def test_a_request_that_is_given_up_resets_its_connection():
    async with silent_server() as (address, _, ended):
        with pytest.raises(
            Unreachable, match=r"create /api/v1/namespaces/team/pods: no answer within 0\.3 s"
        ):
            await send(Credentials(address, None), timeout=0.3)
        assert await asyncio.wait_for(ended.get(), 10) is ConnectionResetError


async def test_a_caller_that_goes_away_resets_its_connection():
    async with (
        silent_server() as (address, begun, ended),
        Transport(Credentials(address, None), OperatorMetrics()) as it,
    ):
        sending = asyncio.create_task(it.send(CALL, 60.0))
        await asyncio.wait_for(begun.wait(), 30)
        sending.cancel()
        assert await asyncio.wait_for(ended.get(), 10) is ConnectionResetError


async def test_a_caller_s_own_time_limit_is_not_taken_for_an_answer_that_is_late():
    async with silent_server() as (address, _, _):
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.2):
                await send(Credentials(address, None))
