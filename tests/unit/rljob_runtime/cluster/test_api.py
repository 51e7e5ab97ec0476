"""The driver's HTTP client against a server in trouble."""

from pathlib import Path
from typing import Any

import pytest

from rljob_client.credentials import TokenFile
from rljob_runtime.cluster.api import ApiClient, ApiRefused, ApiUnavailable
from tests.support.runtime.api_server import Answer, cut, reply, serving, stream

STATUS = {"kind": "Status", "reason": "Forbidden", "message": "no"}

TROUBLE: dict[str, tuple[Answer, type[Exception], str]] = {
    "not allowed": (reply(403, **STATUS), ApiRefused, "403 Forbidden: no"),
    "not there": (
        reply(404, kind="Status", reason="NotFound", message="gone"),
        ApiRefused,
        "404 NotFound: gone",
    ),
    "a proxy's": (reply(403, a=1), ApiRefused, 'HTTP 403: {"a": 1}'),
    "overloaded": (reply(429, **STATUS), ApiUnavailable, "429"),
    "broken": (reply(500, **STATUS), ApiUnavailable, "500"),
    "starting": (reply(503, **STATUS), ApiUnavailable, "503"),
    "an unknown error": (stream(b"<html>"), ApiUnavailable, "not what the API server gives"),
    "cut off": (cut, ApiUnavailable, "get /x"),
}


@pytest.mark.parametrize("case", TROUBLE)
async def test_an_error_says_whether_to_try_again(case: str) -> None:
    answer, error, message = TROUBLE[case]
    async with serving(answer) as server, ApiClient(server.credentials()) as client:
        with pytest.raises(error, match=message):
            await client.get("/x")


async def test_nobody_listening_is_unavailable_and_nothing_was_sent() -> None:
    async with serving(reply()) as server:
        credentials = server.credentials()
    async with ApiClient(credentials) as client:
        with pytest.raises(ApiUnavailable) as caught:
            await client.apply("/x", "me", {})
    assert caught.value.without_effect


async def test_what_was_cut_off_may_have_had_its_effect() -> None:
    async with serving(cut) as server, ApiClient(server.credentials()) as client:
        with pytest.raises(ApiUnavailable) as caught:
            await client.apply("/x", "me", {})
    assert not caught.value.without_effect


async def test_a_token_that_cannot_be_read_now_may_be_there_later(tmp_path: Path) -> None:
    token = TokenFile(tmp_path / "token")
    async with serving(reply()) as server, ApiClient(server.credentials(token)) as client:
        with pytest.raises(ApiUnavailable, match="cannot read the token"):
            await client.get("/x")


async def test_apply_takes_fields_over_as_its_manager(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("t")
    token = TokenFile(tmp_path / "token")
    async with serving(reply(kind="X")) as server, ApiClient(server.credentials(token)) as client:
        assert await client.apply("/x/status", "me", {"a": 1}) == {"kind": "X"}
    (request,) = server.seen
    assert (request.method, request.path, server.bodies) == ("PATCH", "/x/status", [{"a": 1}])
    assert dict(request.query) == {"fieldManager": "me", "force": "true"}
    assert request.headers["Content-Type"] == "application/apply-patch+yaml"
    assert request.headers["Authorization"] == "Bearer t"


async def test_a_rotated_token_is_read_again_when_the_old_one_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("old\n")
    token = TokenFile(file, clock=lambda: 0.0)
    script = (reply(), reply(401, **STATUS), reply(kind="X"))
    async with serving(*script) as server, ApiClient(server.credentials(token)) as client:
        await client.get("/x")
        file.write_text("new\n")
        assert await client.get("/x") == {"kind": "X"}
    assert [request.headers["Authorization"] for request in server.seen] == [
        "Bearer old", "Bearer old", "Bearer new",
    ]  # fmt: skip


async def collect(client: ApiClient) -> list[dict[str, Any]]:
    return [event async for event in client.watch("/x", {"fieldSelector": "metadata.name=a"})]


async def test_a_watch_yields_events_of_any_length() -> None:
    long = {"type": "MODIFIED", "object": {"blob": "x" * 500_000}}
    parts = (b'{"type": "AD', b'DED"}\n{"type": "BOOK', b'MARK"}\n', long)
    async with serving(stream(*parts)) as server, ApiClient(server.credentials()) as client:
        assert await collect(client) == [{"type": "ADDED"}, {"type": "BOOKMARK"}, long]
    assert server.seen[0].query["watch"] == "1"
    assert server.seen[0].query["fieldSelector"] == "metadata.name=a"


async def test_an_object_that_is_nested_deep_is_read_without_its_depths() -> None:
    """Whoever may edit the RLJob must not end its watch, nor the driver."""
    job = b'{"metadata": {"uid": "u"}, "spec": {"template": ' + b'{"a":' * 5000 + b"1" + b"}" * 5001 + b"}"
    event = b'{"type": "MODIFIED", "object": ' + job + b"}\n"
    async with serving(stream(job), stream(event)) as server, ApiClient(server.credentials()) as client:
        assert (await client.get("/x"))["metadata"] == {"uid": "u"}
        [found] = await collect(client)
    assert found["object"]["metadata"] == {"uid": "u"}


@pytest.mark.parametrize("answer", [stream(b"no json\n"), cut], ids=["garbage", "cut off"])
async def test_a_watch_that_breaks_is_unavailable(answer: Answer) -> None:
    async with serving(answer) as server, ApiClient(server.credentials()) as client:
        with pytest.raises(ApiUnavailable, match="watch /x"):
            await collect(client)
