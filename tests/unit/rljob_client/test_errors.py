"""Answers of the API server as errors."""

import json

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
    WebhookFailed,
    error_of,
    refusal_of,
)

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
