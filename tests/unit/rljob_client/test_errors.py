"""Answers of the API server as errors, and when a call is sent again."""

import json
from random import Random

import pytest

from rljob_client.errors import (
    AlreadyExists,
    ApiError,
    Conflict,
    Forbidden,
    Gone,
    Invalid,
    NoSuchResource,
    NotFound,
    ServerError,
    TooManyRequests,
    Unauthorized,
    Unreachable,
    WebhookFailed,
    error_of,
    refusal_of,
)
from rljob_operator.kube.backoff import Backoff
from rljob_operator.kube.retry import NO_RETRY, RetryPolicy

DEAD = 'failed calling webhook "a.b": connection refused'


def status(code, reason="", message="no", **details):
    """The body of a refusal."""
    return json.dumps(
        {"kind": "Status", "code": code, "reason": reason, "message": message, "details": details}
    ).encode()


@pytest.mark.parametrize(
    ("code", "body", "kind", "says"),
    [
        (400, status(400, "BadRequest", 'unknown field "spec.x"'), Invalid, 'unknown field "spec.x"'),
        (401, status(401, "Unauthorized"), Unauthorized, "has expired"),
        (403, status(403, "Forbidden", "exceeded quota"), Forbidden, "exceeded quota"),
        (404, status(404, "NotFound", 'pods "a" not found', name="a"), NotFound, 'pods "a" not found'),
        (404, b"404 page not found\n", NoSuchResource, "install its CustomResourceDefinition"),
        (409, status(409, "Conflict", "object modified", name="a"), Conflict, "object modified"),
        (409, status(409, "AlreadyExists", name="a"), AlreadyExists, "no"),
        (410, status(410, "Expired", "too old resource version"), Gone, "too old"),
        (422, status(422, "Invalid", "spec.x: Required value"), Invalid, "spec.x: Required value"),
        (429, status(429, "TooManyRequests", retryAfterSeconds=7), TooManyRequests, "asks for 7 s"),
        (500, status(500, "InternalError", "etcd is away"), ServerError, "etcd is away"),
        (500, status(500, "InternalError", f"Internal error occurred: {DEAD}"), WebhookFailed, DEAD),
        (503, b"<html>\n<h1>Bad   gateway</h1>", ServerError, "<html> <h1>Bad gateway</h1>"),
        (302, b"", ApiError, "HTTP status 302"),
    ],
)
def test_answers_as_errors(code, body, kind, says):
    error = error_of("get /api/v1/pods", refusal_of(code, body))
    assert type(error) is kind
    assert str(error).startswith("get /api/v1/pods: ")
    assert says in str(error)


def test_the_header_says_when_to_come_back_before_the_body_does():
    error = error_of("get /x", refusal_of(429, status(429, retryAfterSeconds=7), "3"))
    assert isinstance(error, TooManyRequests)
    assert error.retry_after == 3.0


def test_causes_tell_which_manager_owns_a_field():
    causes = [{"reason": "FieldManagerConflict", "message": 'conflict with "kubectl"', "field": ".spec.x"}]
    error = error_of("apply /x", refusal_of(409, status(409, "Conflict", name="x", causes=causes)))
    assert error.refusal.causes == (("FieldManagerConflict", 'conflict with "kubectl"'),)
    assert error.caused_by("FieldManagerConflict")
    assert not error.caused_by("NamespaceTerminating")


def test_back_off_doubles_up_to_its_cap():
    backoff = Backoff(base_seconds=1.0, cap_seconds=10.0, jitter=0.0)
    assert [backoff.delay(failures, Random(0)) for failures in (1, 2, 3, 4, 5, 10_000)] == [
        1,
        2,
        4,
        8,
        10,
        10,
    ]


def test_jitter_only_shortens():
    backoff = Backoff(base_seconds=8.0, cap_seconds=8.0, jitter=0.25)
    random = Random(0)
    delays = [backoff.delay(1, random) for _ in range(200)]
    assert 6.0 <= min(delays) < 6.2
    assert 7.8 < max(delays) <= 8.0


def refused(code, retry_after=None):
    return error_of("get /x", refusal_of(code, b"", retry_after))


@pytest.mark.parametrize(
    ("error", "sent", "wait"),
    [
        (Unreachable("get /x", "cut"), 1, 1.0),
        (Unreachable("get /x", "cut"), 2, 2.0),
        (Unreachable("get /x", "cut"), 3, None),
        (refused(500), 1, 1.0),
        (refused(504), 2, 2.0),
        (refused(429), 1, 1.0),
        (refused(429, "4"), 1, 4.0),
        (refused(429, "60"), 1, None),
        (refused(503, "4"), 1, 4.0),
        (refused(401), 1, None),
        (refused(403), 1, None),
        (refused(404), 1, None),
        (refused(409), 1, None),
        (refused(410), 1, None),
        (refused(422), 1, None),
    ],
)
def test_what_is_sent_again(error, sent, wait):
    policy = RetryPolicy(3, Backoff(1.0, 5.0, jitter=0.0), longest_wait_seconds=30.0)
    assert policy.wait(error, sent, Random(0)) == wait


def test_no_retry_gives_up_at_once():
    assert NO_RETRY.wait(Unreachable("get /x", "cut"), 1, Random(0)) is None
