"""The driver follows its RLJob through all that a watch can meet."""

import asyncio
import random
from typing import Any

import pytest

from rljob_client.errors import Forbidden, NoSuchResource, Unreachable
from rljob_runtime.cluster.api import ApiClient
from rljob_runtime.cluster.own_job import Identity, JobGone, OwnJob, read_job
from rljob_runtime.site.desired import DesiredState, desired_state_of
from tests.support.runtime.api_server import Answer, cut, reply, serving, stream

IDENTITY = Identity("team", "math")
FIRST = DesiredState(generation=1, trainer=1, fast=2, heavy=0)


def rljob(
    generation: int = 2, version: str = "10", uid: str = "u", fast: int = 3, **more: Any
) -> dict[str, Any]:
    pools = {"trainer": {"replicas": 1}, "fastRollout": {"replicas": fast}, "heavyRollout": {"replicas": 0}}
    return {
        "metadata": {"name": "math", "uid": uid, "generation": generation, "resourceVersion": version},
        "spec": {"pools": pools, "training": {"anything": 1}, **more},
    }


def event(kind: str = "MODIFIED", **fields: Any) -> dict[str, Any]:
    return {"type": kind, "object": rljob(**fields)}


BOOKMARK = {"type": "BOOKMARK", "object": {"metadata": {"resourceVersion": "20"}}}
TOO_OLD = {"type": "ERROR", "object": {"kind": "Status", "code": 410, "message": "too old"}}
OTHER_ERROR = {"type": "ERROR", "object": {"kind": "Status", "code": 500, "message": "oh"}}


END = event(generation=1000)


def held(*events: dict[str, Any]) -> Answer:
    """A watch that does not end; its last event is `END`."""
    return stream(*events, END, hold=True)


async def follow(*script: Answer, requests: int) -> list[DesiredState]:
    """The desired states that are told before that of `END`, over so many requests."""
    told: list[DesiredState] = []
    async with serving(*script, held()) as server, ApiClient(server.credentials()) as client:
        own = OwnJob(client, IDENTITY, "u", FIRST, random.Random(0))
        following = asyncio.create_task(own.follow(told.append))
        async with asyncio.timeout(60):
            while not told or told[-1].generation != 1000:  # noqa: ASYNC110 - it tells what is new alone
                await asyncio.sleep(0.01)
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)
        assert own.desired == told.pop()
    assert all(request.query["fieldSelector"] == "metadata.name=math" for request in server.seen)
    # Each begins with what there is: a server that was restored would have to reach a version first.
    assert [request.query.get("resourceVersion") for request in server.seen] == [None] * requests
    return told


async def test_each_change_is_told_once() -> None:
    events = [event("ADDED"), event(), event(version="11"), event(generation=3, fast=1)]
    told = await follow(held(*events), requests=1)
    assert [(desired.generation, desired.fast) for desired in told] == [(2, 3), (3, 1)]


async def test_what_is_as_it_was_is_not_told() -> None:
    told = await follow(held(event("ADDED", generation=1, fast=2)), requests=1)
    assert told == []


async def test_a_watch_that_ends_is_begun_again() -> None:
    told = await follow(stream(event("ADDED"), BOOKMARK), stream(event(generation=5)), requests=3)
    assert [desired.generation for desired in told] == [2, 5]


@pytest.mark.parametrize(
    "answer",
    [
        stream(TOO_OLD),
        reply(410, kind="Status", reason="Expired", message="too old"),
        reply(403, kind="Status", reason="Forbidden", message="no"),
        reply(503, kind="Status", reason="Unavailable", message="later"),
        stream(OTHER_ERROR),
        cut,
        stream(),
    ],
    ids=["410 event", "410", "403", "503", "another event", "cut", "empty"],
)
async def test_after_trouble_nothing_is_missed(answer: Answer) -> None:
    told = await follow(stream(event("ADDED")), answer, held(event(generation=9)), requests=3)
    assert told[-1].generation == 9


@pytest.mark.parametrize(
    "last",
    [event("DELETED"), event("ADDED", uid="another"), {"type": "MODIFIED", "object": rljob() | {"metadata": {
        "name": "math", "uid": "u", "generation": 3, "resourceVersion": "9", "deletionTimestamp": "t"}}}],
    ids=["deleted", "made again", "being deleted"],
)  # fmt: skip
async def test_a_deleted_job_is_told(last: dict[str, Any]) -> None:
    told = await follow(held(event("ADDED"), last), requests=1)
    assert told[-1].deleted


async def test_what_is_not_understood_changes_nothing() -> None:
    strange = {"type": "MODIFIED", "object": {**rljob(), "spec": {"pools": "all"}}}
    told = await follow(held(event("ADDED"), strange, event(generation=5)), requests=1)
    assert [desired.generation for desired in told] == [2, 5]


def test_a_wish_holds_what_may_change() -> None:
    found = rljob(suspend=True) | {"status": {"phase": "Running", "scaleDowns": [
        {"pool": "fastRollout", "victims": ["a", "b"], "replicas": 1},
        {"pool": "trainer", "victims": ["c"], "replicas": 4},
    ]}}  # fmt: skip
    expected = DesiredState(
        2, trainer=1, fast=3, heavy=0, suspend=True, doomed=frozenset("abc"), trainer_resize=4
    )
    assert desired_state_of(found) == expected
    assert (expected.workers("fast"), expected.workers("heavy")) == (3, 0)


@pytest.mark.parametrize(
    ("kind", "status", "refused"),
    [("Accepted", "False", True), ("Accepted", "True", False), ("Degraded", "False", False)],
)
def test_a_wish_says_whether_the_operator_refuses_it(kind: str, status: str, refused: bool) -> None:
    condition = {"type": kind, "status": status, "reason": "R", "lastTransitionTime": "t"}
    found = desired_state_of(rljob() | {"status": {"observedGeneration": 2, "conditions": [condition]}})
    assert (found.refused, found.trainer_resize, found.settled) == (refused, None, True)


async def test_reading_tries_until_the_server_is_there() -> None:
    script = (reply(503, reason="x", message="starting"), cut, reply(**rljob()))
    async with serving(*script) as server, ApiClient(server.credentials()) as client:
        assert (await read_job(client, IDENTITY, 20.0, random.Random(0)))["spec"]
    assert server.seen[0].path == "/apis/rljob.dev/v1alpha1/namespaces/team/rljobs/math"


@pytest.mark.parametrize(
    ("answer", "error", "message"),
    [
        (reply(404, kind="Status", message="", details={"name": "math"}), JobGone, "no RLJob team/math"),
        (reply(404, kind="Status", message=""), NoSuchResource, "install its CustomResourceDefinition"),
        (reply(403, kind="Status", message="not allowed"), Forbidden, "not allowed"),
        (reply(503, kind="Status", message="starting"), Unreachable, "could not be read for 2 s.*starting"),
    ],
)
async def test_reading_says_why_it_failed(answer: Answer, error: type[Exception], message: str) -> None:
    async with serving(answer) as server, ApiClient(server.credentials()) as client:
        with pytest.raises(error, match=message):
            await read_job(client, IDENTITY, 2.0, random.Random(0))
