"""The verbs, over one connection: what is sent, and what is made of an answer."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from random import Random
from typing import Any

import pytest

from rljob_client.client import ApiClient, Change, ClientSettings
from rljob_client.errors import ApiError, Gone, ServerError, Unreachable
from rljob_client.objects import Item
from rljob_client.resources import RLJOBS
from rljob_client.retry import NO_RETRY
from rljob_client.transport import Transport, Uncounted
from tests.support.runtime.api_server import Answer, Scripted, cut, reply, serving, stream

JOB = {
    "apiVersion": "rljob.dev/v1alpha1",
    "kind": "RLJob",
    "metadata": {"namespace": "team", "name": "math"},
    "status": {"training": {"step": 1}},
}
PATH = "/apis/rljob.dev/v1alpha1/namespaces/team/rljobs"


class Found(Item):
    spec: Any = None


@asynccontextmanager
async def client(*script: Answer) -> AsyncIterator[tuple[Scripted, ApiClient]]:
    """A client that sends each call once, and its server."""
    async with serving(*script) as server, Transport(server.credentials(), Uncounted(), "test") as transport:
        yield server, ApiClient(transport, ClientSettings("me", retry=NO_RETRY), Random(0))


async def test_apply_takes_fields_over_as_its_manager() -> None:
    async with client(reply(kind="RLJob")) as (server, api):
        assert await api.apply_status(JOB) == {"kind": "RLJob"}
    (request,) = server.seen
    assert (request.method, request.path, server.bodies) == ("PATCH", f"{PATH}/math/status", [JOB])
    assert dict(request.query) == {"fieldManager": "me", "force": "true"}
    assert request.headers["Content-Type"] == "application/apply-patch+yaml"


@pytest.mark.parametrize(
    ("answer", "error", "says"),
    [
        (reply(503, kind="Status", message="starting"), ServerError, f"get {PATH}/math: starting"),
        (stream(b"<html>"), Unreachable, "not what the API server gives"),
        (cut, Unreachable, f"get {PATH}/math: the connection to http://127.0.0.1"),
    ],
    ids=["a refusal", "a proxy's page", "cut off"],
)
async def test_a_failed_call_says_which_and_why(answer: Answer, error: type[ApiError], says: str) -> None:
    async with client(answer) as (_, api):
        with pytest.raises(error, match=says):
            await api.get(RLJOBS, "team", "math", dict[str, Any])


async def collect(api: ApiClient) -> list[Change[Found]]:
    async with api.watch(RLJOBS, Found, "", "team", field_selector="metadata.name=math") as changes:
        return [change async for change in changes]


async def test_a_watch_yields_events_of_any_length() -> None:
    long = b'{"type": "MODIFIED", "object": {"metadata": {"uid": "u"}, "spec": "' + b"x" * 500_000 + b'"}}\n'
    parts = (
        b'{"type": "AD', b'DED", "object": {"metadata": {"resourceVersion": "7"}}}\n{"type": "BOOK',
        b'MARK", "object": {"metadata": {"resourceVersion": "9"}}}\n', long,
    )  # fmt: skip
    async with client(stream(*parts)) as (server, api):
        added, bookmark, modified = await collect(api)
    assert (added.kind, added.version, bookmark.version, bookmark.item) == ("ADDED", "7", "9", None)
    assert modified.item is not None and len(modified.item.spec) == 500_000
    query = dict(server.seen[0].query)
    assert (server.seen[0].path, query["watch"], query["allowWatchBookmarks"]) == (PATH, "true", "true")
    assert query["fieldSelector"] == "metadata.name=math" and "resourceVersion" not in query


async def test_an_object_that_is_nested_deep_is_read_without_its_depths() -> None:
    """Whoever may edit the RLJob must not end its watch, nor the driver."""
    job = b'{"metadata": {"uid": "u"}, "spec": {"template": ' + b'{"a":' * 5000 + b"1" + b"}" * 5001 + b"}"
    event = b'{"type": "MODIFIED", "object": ' + job + b"}\n"
    async with client(stream(job), stream(event)) as (_, api):
        assert (await api.get(RLJOBS, "team", "math", dict[str, Any]))["metadata"] == {"uid": "u"}
        [found] = await collect(api)
    assert found.item is not None and found.item.metadata.uid == "u"


TOO_OLD = {"type": "ERROR", "object": {"kind": "Status", "code": 410, "message": "too old"}}


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (stream(b"no json\n"), Unreachable),
        (cut, Unreachable),
        (stream(TOO_OLD), Gone),
        (reply(410, kind="Status", message="too old"), Gone),
    ],
    ids=["garbage", "cut off", "an event of an error", "refused"],
)
async def test_a_watch_that_breaks_says_why(answer: Answer, error: type[ApiError]) -> None:
    async with client(answer) as (_, api):
        with pytest.raises(error, match="watch /apis"):
            await collect(api)
