"""What the operator takes the cluster's KubeRay for, also where a look at its schema fails."""

import asyncio
import json
import logging

import pytest

from rljob_client.errors import ApiError, Forbidden, ServerError, Unreachable, error_of, refusal_of
from rljob_operator.controller.kuberay_schema import KubeRaySchema
from rljob_operator.render.kuberay import KubeRay, UnsupportedKubeRay

PATH = "get /openapi/v3/apis/ray.io/v1"
READY, UNSUPPORTED = (
    ("ready", ""),
    "the cluster's RayCluster has no worker groups as of ray.io/v1: install KubeRay",
)


def schema(*fields):
    """The API server's answer, where worker groups have these fields."""
    group = {"properties": {field: {} for field in fields}}
    spec = {"properties": {"workerGroupSpecs": {"items": group}}}
    kind = {"x-kubernetes-group-version-kind": [{"group": "ray.io", "kind": "RayCluster"}]}
    return json.dumps({"components": {"schemas": {"x": {**kind, "properties": {"spec": spec}}}}}).encode()


GOOD, OLD = schema("template", "scaleStrategy", "resources"), schema("template")
FAILURES = {
    "no right": (error_of(PATH, refusal_of(403, b"no")), Forbidden),
    "a broken API server": (error_of(PATH, refusal_of(503, b"upstream")), ServerError),
    "no answer": (Unreachable(PATH, "timed out"), Unreachable),
    "an answer that is no schema": (b"<html>", ApiError),
}


class Answers:
    """An API server that gives these answers, the last one again and again."""

    def __init__(self, *answers):
        self.answers, self.asked = list(answers), 0

    async def send(self, call, timeout):
        self.asked += 1
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, ApiError):
            raise answer
        return answer


class Looks:
    """States at given seconds."""

    def __init__(self, *answers):
        self.server, self.now = Answers(*answers), 0.0
        self.kuberay = KubeRaySchema(self.server, lambda: self.now)

    def state(self, seconds, served=True):
        self.now = seconds
        return asyncio.run(self.kuberay.state(served))


def test_it_is_read_once_a_minute():
    looks = Looks(GOOD, OLD)
    assert [looks.state(0), looks.state(59)] == [READY, READY] and looks.server.asked == 1
    assert looks.kuberay.capabilities == KubeRay(group_resources=True)
    assert looks.state(60) == ("unsupported", UNSUPPORTED) and looks.server.asked == 2
    with pytest.raises(UnsupportedKubeRay):
        _ = looks.kuberay.capabilities


@pytest.mark.parametrize("failure", [failure for failure, _ in FAILURES.values()], ids=FAILURES)
def test_a_look_that_fails_leaves_what_was_found_last(failure, caplog):
    looks = Looks(GOOD, failure, failure, GOOD, failure, OLD)
    with caplog.at_level(logging.WARNING):
        assert looks.state(0) == READY and caplog.messages == []
        assert [looks.state(seconds) for seconds in (60, 61, 120)] == [READY] * 3
    assert looks.server.asked == 3, "a failure is not asked for again by every job"
    assert looks.kuberay.capabilities == KubeRay(group_resources=True)
    [told] = caplog.messages
    assert told.startswith(
        "the fields of RayClusters cannot be read again, those read last are taken: get /openapi"
    )
    assert [looks.state(180), looks.state(240)] == [READY, READY]
    assert len(caplog.messages) == 2, "it has worked in between"
    assert looks.state(300)[0] == "unsupported"


@pytest.mark.parametrize(("failure", "kind"), FAILURES.values(), ids=FAILURES)
def test_without_anything_found_a_failure_is_told(failure, kind):
    looks = Looks(failure, failure, GOOD, failure)
    for seconds in (0, 1):
        with pytest.raises(kind):
            looks.state(seconds)
    assert looks.state(2) == READY
    assert looks.state(3, served=False) == ("missing", "")
    with pytest.raises(kind):
        looks.state(4)


def test_an_old_kuberay_stays_one_while_it_cannot_be_looked_at():
    looks = Looks(OLD, FAILURES["no right"][0])
    assert looks.state(0) == looks.state(60) == ("unsupported", UNSUPPORTED)


def test_a_kuberay_that_is_taken_away_is_missing():
    looks = Looks(GOOD, error_of(PATH, refusal_of(404, b"")), GOOD)
    assert [looks.state(seconds)[0] for seconds in (0, 60, 61)] == ["ready", "missing", "ready"]
