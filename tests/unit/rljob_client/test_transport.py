"""Single requests: who is believed, and what becomes of those that are given up."""

import asyncio
import ssl
import threading
import traceback
from contextlib import asynccontextmanager

import pytest
from aiohttp import web

from rljob_client.credentials import AuthorityFile, Credentials, find_credentials
from rljob_client.errors import Forbidden, NoCredentials, Unauthorized, Unreachable
from rljob_client.identity import Identity
from rljob_client.resources import PODS
from rljob_client.shared_login import FILE_PACE, SharedLogin
from rljob_client.transport import Call, Transport
from rljob_operator.metrics import OperatorMetrics
from tests.support.operator.certificates import Authority
from tests.support.operator.kubeconfig import write_kubeconfig

CALL = Call("create", PODS, PODS.path("team"), body=b"{}")


@pytest.fixture
def authority(tmp_path):
    return Authority(tmp_path)


@pytest.fixture(params=[ssl.CERT_REQUIRED])
async def server(authority, request):
    """An HTTPS server that lets in only who has a certificate of the authority's (CERT_OPTIONAL: anybody);
    tells them their name."""
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=str(authority.certificate))
    tls.verify_mode = request.param
    own = authority.sign("server")
    tls.load_cert_chain(own.certificate, own.key)

    async def answer(request):
        certificate = request.transport.get_extra_info("peercert")
        return web.json_response({"you": certificate["subject"][0][0][1] if certificate else None})

    application = web.Application()
    application.router.add_route("*", "/{path:.*}", answer)
    runner = web.AppRunner(application, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=tls).start()
    yield f"https://127.0.0.1:{runner.addresses[0][1]}"
    await runner.cleanup()


def kubeconfig(path, server, user=None, **cluster):
    return find_credentials(write_kubeconfig(path, {"server": server, **cluster}, user))


async def send(credentials, timeout=60.0):
    async with Transport(credentials, OperatorMetrics(), "test") as transport:
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


async def test_a_strange_certificate_is_named_and_nothing_is_sent(tmp_path, server):
    with pytest.raises(
        Unreachable, match=f"the certificate of {server} is not accepted: .*verify failed"
    ) as caught:
        await send(kubeconfig(tmp_path / "config", server))
    assert not caught.value.sent


@pytest.mark.parametrize("server", [ssl.CERT_OPTIONAL], indirect=True)
async def test_a_rotated_authority_is_read_again(tmp_path, authority, server):
    (tmp_path / "other").mkdir()
    file = tmp_path / "ca.crt"
    file.write_bytes(Authority(tmp_path / "other").certificate.read_bytes())
    rotated = AuthorityFile(file)
    credentials = Credentials(server, rotated.tls, authority=rotated)
    with pytest.raises(Unreachable, match="not accepted"):
        await send(credentials)
    file.write_bytes(authority.certificate.read_bytes())
    answers = await asyncio.gather(*(send(credentials) for _ in range(20)))
    assert set(answers) == {b'{"you": null}'}


async def test_the_name_that_a_certificate_must_bear(tmp_path, authority, server):
    me = authority.sign("me")
    user = {"client-certificate": me.certificate.name, "client-key": me.key.name}
    ours = {"certificate-authority": authority.certificate.name, "tls-server-name": "kubernetes"}
    with pytest.raises(Unreachable, match="not valid for 'kubernetes'"):
        await send(kubeconfig(tmp_path / "config", server, user, **ours))


def logins(*tokens):
    """A user who gets these tokens one after the other, and then the last one for ever."""
    left = list(tokens)
    return SharedLogin(lambda: Identity(left.pop(0) if len(left) > 1 else left[0]), FILE_PACE)


@asynccontextmanager
async def serving(answer):
    """A server that answers so; gives its address."""
    runner = web.AppRunner(web.Application(), access_log=None, shutdown_timeout=0.1)
    runner.app.router.add_route("*", "/{path:.*}", answer)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    await runner.cleanup()


@asynccontextmanager
async def picky_server(accepted):
    """Accepts one token; tells the requests that came."""
    seen = []

    async def answer(request):
        seen.append(request)
        if request.headers.get("Authorization") != accepted:
            return web.json_response({"kind": "Status", "message": "who?"}, status=401)
        return web.Response(text="{}\n")

    async with serving(answer) as address:
        yield address, seen


async def test_a_refused_user_logs_in_again_for_requests_and_watches():
    async with (
        picky_server("Bearer 2") as (address, seen),
        Transport(
            Credentials(address, None, logins("Bearer 1", "Bearer 2")), OperatorMetrics(), "test"
        ) as transport,
        transport.stream(CALL, 60.0) as lines,
    ):
        assert [line async for line in lines] == [b"{}"]
        assert await transport.send(CALL, 60.0) == b"{}\n"
    assert [request.headers["Authorization"] for request in seen] == ["Bearer 1", "Bearer 2", "Bearer 2"]


async def test_a_user_whom_nobody_knows_is_told_the_server_s_words():
    async with picky_server("Bearer 2") as (address, seen):
        with pytest.raises(Unauthorized, match=r"who\?"):
            await send(Credentials(address, None, logins("Bearer a")))
    assert len(seen) == 1


async def test_requests_speak_for_somebody_else_through_a_proxy():
    headers = (("Impersonate-Group", "a"), ("Impersonate-Group", "b"))
    async with picky_server("Bearer 1") as (proxy, seen):
        credentials = Credentials(
            "http://api.invalid", None, logins("Bearer 1"), proxy=proxy, headers=headers
        )
        assert await send(credentials) == b"{}\n"
    (request,) = seen
    assert request.headers["Host"] == "api.invalid"
    assert request.headers.getall("Impersonate-Group") == ["a", "b"]


@asynccontextmanager
async def proxy_that_says(words):
    """Answers each CONNECT with these words, and ends the connection. Gives its host and port."""

    async def serve(reader, writer):
        await reader.readuntil(b"\r\n\r\n")
        writer.write(words)
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}"


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (
            b"HTTP/1.1 407 Who are you\r\nContent-Length: 0\r\n\r\n",
            "the proxy {proxy} makes no connection to https://api.invalid: 407 Who are you",
        ),
        (b"", "the connection to https://api.invalid broke"),
        (b"S3cret\r\n\r\n", "the connection to https://api.invalid broke"),
        (None, "cannot connect to the proxy {proxy}: "),
    ],
    ids=["a refusal", "nothing", "nonsense", "away"],
)
async def test_no_error_shows_the_password_of_a_proxy(words, says):
    async with proxy_that_says(words or b"") as proxy:
        if words is None:
            proxy = "127.0.0.1:1"
        credentials = Credentials("https://api.invalid", None, proxy=f"http://me:Passw0rd@{proxy}")
        with pytest.raises(Unreachable, match=says.format(proxy=proxy)) as caught:
            await send(credentials)
    assert caught.value.sent == (words in (b"", b"S3cret\r\n\r\n"))
    assert "Passw0rd" not in "".join(traceback.format_exception(caught.value))


@asynccontextmanager
async def silent_server(until=b"\r\n\r\n{}"):
    """Takes requests and never answers. Gives its address, an event that is set when a request has come, and
    how each connection ended."""
    begun, ended = asyncio.Event(), asyncio.Queue()

    async def serve(reader, writer):
        try:
            await reader.readuntil(until)
            begun.set()
            ended.put_nowait(await reader.read())
        except ConnectionResetError as error:
            ended.put_nowait(type(error))
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", begun, ended


async def test_a_watch_through_a_proxy_that_is_silent_ends():
    limit = 0.5
    async with silent_server(b"\r\n\r\n") as (proxy, begun, ended):
        credentials = Credentials("https://api.invalid", None, proxy=proxy)
        async with Transport(credentials, OperatorMetrics(), "test") as transport:
            # On a machine that stood still for all of the limit nothing was sent.
            while not begun.is_set() and limit < 60.0:
                with pytest.raises(Unreachable, match=rf"pods: no answer within {limit:.3g} s"):
                    async with asyncio.timeout(limit + 20.0), transport.stream(CALL, limit):
                        pass
                limit *= 4
        assert begun.is_set()
        assert await asyncio.wait_for(ended.get(), 10) in (b"", ConnectionResetError)


async def test_a_watch_whose_login_does_not_end_is_given_up():
    gate = threading.Event()

    def log_in():
        gate.wait(20.0)
        return Identity("Bearer late")

    async with silent_server() as (address, begun, _):
        credentials = Credentials(address, None, SharedLogin(log_in, FILE_PACE))
        async with Transport(credentials, OperatorMetrics(), "test") as transport:
            with pytest.raises(Unreachable, match=r"the login has not ended within 0\.5 s") as caught:
                async with asyncio.timeout(20.0), transport.stream(CALL, 0.5):
                    pass
        gate.set()
        assert not caught.value.sent and not begun.is_set()


async def test_a_refusal_of_a_watch_that_does_not_end():
    """A byte comes now and then: it is not silent."""

    async def drip(request):
        answer = web.StreamResponse(status=403)
        await answer.prepare(request)
        while True:
            await answer.write(b"no")
            await asyncio.sleep(0.1)

    async with (
        serving(drip) as address,
        Transport(Credentials(address, None), OperatorMetrics(), "test") as transport,
    ):
        with pytest.raises(Unreachable, match=r"no answer within 0\.5 s"):
            async with asyncio.timeout(20.0), transport.stream(CALL, 0.5):
                pass


class Counted:
    """An observer."""

    def __init__(self):
        self.calls = []

    def api_called(self, verb, resource, code, seconds):
        self.calls.append((verb, resource, code, seconds))


@pytest.mark.parametrize(
    ("then", "code"), [("ends", "200"), ("breaks", "none"), ("stands still", "none"), ("is refused", "403")]
)
async def test_a_request_is_counted_when_its_answer_has_ended(then, code):
    async def answer(request):
        begun = web.StreamResponse(status=403 if then == "is refused" else 200)
        begun.content_length = 2
        await begun.prepare(request)
        await begun.write(b"{")
        # Its end comes later than its beginning, which is all that it must be.
        await asyncio.sleep(0.4)
        if then == "breaks":
            request.transport.close()
        elif then == "stands still":
            await asyncio.sleep(10.0)
        else:
            await begun.write(b"}")
        return begun

    counted = Counted()
    async with (
        serving(answer) as address,
        Transport(Credentials(address, None), counted, "test") as transport,
    ):
        if then == "ends":
            assert await transport.send(CALL, 60.0) == b"{}"
        else:
            with pytest.raises(Unreachable if code == "none" else Forbidden):
                await transport.send(CALL, 1.0 if then == "stands still" else 60.0)
    [(*told, seconds)] = counted.calls
    assert told == ["create", "pods", code]
    assert seconds >= 0.4


async def test_a_watch_is_counted_when_it_has_begun():
    async def answer(request):
        begun = web.StreamResponse()
        await begun.prepare(request)
        await begun.write(b"{}\n")
        await asyncio.sleep(20.0)
        return begun

    counted = Counted()
    async with (
        serving(answer) as address,
        Transport(Credentials(address, None), counted, "test") as transport,
        transport.stream(CALL, 60.0) as lines,
    ):
        assert [told for *told, _ in counted.calls] == [["create", "pods", "200"]]
        assert await anext(lines) == b"{}"
        assert len(counted.calls) == 1


async def test_a_request_that_is_sent_again_after_a_login_is_counted_twice():
    counted = Counted()
    async with picky_server("Bearer 2") as (address, _):
        credentials = Credentials(address, None, logins("Bearer 1", "Bearer 2"))
        async with Transport(credentials, counted, "test") as transport:
            await transport.send(CALL, 60.0)
    assert [code for _, _, code, _ in counted.calls] == ["401", "200"]


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
        Transport(Credentials(address, None), OperatorMetrics(), "test") as it,
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


@pytest.mark.parametrize(("left", "says"), [(None, "token: No such file"), ("\n", "its tokenFile is empty")])
async def test_a_token_that_cannot_be_read_is_no_request(tmp_path, left, says):
    token, now = tmp_path / "token", [0.0]
    token.write_text("t")
    path = write_kubeconfig(tmp_path / "config", {"server": "http://127.0.0.1:1"}, {"tokenFile": "token"})
    credentials = find_credentials(path, clock=lambda: now[0])
    token.unlink()
    if left is not None:
        token.write_text(left)
    now[0] = 60.0
    with pytest.raises(NoCredentials, match=says) as caught:
        await send(credentials)
    assert caught.value.without_effect
