"""What the package's connections do as we need it, and not as they come."""

from math import nan

import msgspec
import pytest
from kubernetes.aio.client import Configuration
from kubernetes.aio.client.rest import RESTClientObject

from rljob_client.connections import Connections, new_tls
from rljob_client.credentials import Credentials
from rljob_client.errors import ApiError
from rljob_client.resources import PODS
from rljob_client.transport import Call, Transport, Uncounted
from tests.support.runtime.api_server import Answer, reply, serving, stream

READ = Call("get", PODS, PODS.path("team", "a"))
WRITE = Call("create", PODS, PODS.path("team"), body=msgspec.json.encode({"name": "\u00fc", "loss": nan}))


def transport(server, **more):
    return Transport(Credentials(server.url, None, **more), Uncounted(), "test")


def redirect(code: int, url: str) -> Answer:
    async def answer(request):
        response = await reply(code, kind="Moved")(request)
        response.headers["Location"] = f"{url}/elsewhere"
        return response

    return answer


@pytest.mark.parametrize("code", [301, 302, 303, 307, 308])
@pytest.mark.parametrize("call", [READ, WRITE], ids=["read", "write"])
async def test_a_redirect_is_an_error_and_is_not_followed(code, call):
    async with serving(reply()) as other, serving(redirect(code, other.url)) as server:
        async with transport(server) as it:
            with pytest.raises(ApiError, match="Moved"):
                await it.send(call, 10.0)
            with pytest.raises(ApiError, match="Moved"):
                async with it.stream(call, 10.0):
                    pass
        assert (len(server.seen), other.seen) == (2, [])


async def test_the_package_alone_follows_a_redirect():
    """Once it does not, the client need not see to it."""
    package = RESTClientObject(Configuration())
    async with serving(reply(kind="Other")) as other, serving(redirect(302, other.url)) as server:
        answer = await package.request("POST", f"{server.url}/", body={"a": 1})
        assert (await answer.read(), answer.status) == (b'{"kind": "Other"}', 200)
        await package.close()
    assert [request.method for request in other.seen] == ["GET"]


async def test_a_body_arrives_as_it_is():
    async with serving(reply()) as server, transport(server) as it:
        await it.send(WRITE, 10.0)
    assert server.bodies == [{"name": "\u00fc", "loss": None}]
    assert server.seen[0].headers["Content-Type"] == "application/json"


async def test_nothing_is_taken_from_the_environment_and_no_cookie_is_kept(tmp_path, monkeypatch):
    (tmp_path / ".netrc").write_text("machine 127.0.0.1 login me password secret\n")
    monkeypatch.setenv("HOME", str(tmp_path))

    async def answer(request):
        response = await reply()(request)
        response.set_cookie("server", "1")
        return response

    async with serving(reply()) as proxy, serving(answer) as server:
        monkeypatch.setenv("HTTP_PROXY", proxy.url)
        async with transport(server) as it:
            for _ in range(2):
                await it.send(READ, 10.0)
        assert (len(server.seen), proxy.seen) == (2, [])
    for request in server.seen:
        assert not {"Authorization", "Cookie"} & request.headers.keys()


async def test_connections_are_closed_once_they_are_not_used(monkeypatch):
    """Whoever renews a certificate each hour must not keep what belonged to the old ones."""
    made = []
    monkeypatch.setattr(Connections, "_create_pool_manager", kept(made, Connections._create_pool_manager))
    first, second, third = (new_tls(Configuration()) for _ in range(3))

    def closed():
        return [session.closed for session in made]

    async with serving(stream({"a": 1}, hold=True), reply()) as server, transport(server) as it:
        it._credentials = Credentials(server.url, first)
        async with it.stream(READ, 10.0) as lines:
            await anext(lines)
            it._credentials = Credentials(server.url, second)
            await it.send(READ, 10.0)
            assert closed() == [False, False]
        it._credentials = Credentials(server.url, third)
        await it.send(READ, 10.0)
        assert closed() == [True, True, False]
    assert closed() == [True, True, True]


def kept(made, create):
    def creating(self):
        made.append(create(self))
        return made[-1]

    return creating
