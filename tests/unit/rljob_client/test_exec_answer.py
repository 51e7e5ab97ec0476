"""What credential commands answer, right and wrong."""

import base64
from datetime import UTC, datetime, timedelta, timezone

import pytest

from rljob_client.exec_answer import read_answer

TIME = "2026-01-31T12:00:00Z"
NOON = datetime(2026, 1, 31, 12, tzinfo=UTC)
CERTIFICATE = {"clientCertificateData": "a certificate", "clientKeyData": "a key"}
AS_USER = {
    "client-certificate-data": base64.b64encode(b"a certificate").decode(),
    "client-key-data": base64.b64encode(b"a key").decode(),
}
FORM = "status.expirationTimestamp must be a time with a zone, such as 2026-01-31T12:00:00Z (found {})"
BOTH = "certificate and key come together"


@pytest.mark.parametrize(
    ("status", "user", "expires"),
    [
        ({"token": "t"}, {"token": "t"}, None),
        ({"token": "t", "expirationTimestamp": None, "more": 1}, {"token": "t"}, None),
        ({"token": "t", "expirationTimestamp": TIME}, {"token": "t"}, NOON),
        (
            {"token": "t", "expirationTimestamp": "2026-01-31T12:00:00.5+01:00"},
            {"token": "t"},
            datetime(2026, 1, 31, 12, 0, 0, 500_000, tzinfo=timezone(timedelta(hours=1))),
        ),
        (CERTIFICATE, AS_USER, None),
        ({**CERTIFICATE, "token": ""}, AS_USER, None),
        ({**CERTIFICATE, "token": "t"}, {"token": "t", **AS_USER}, None),
    ],
)
def test_what_is_understood(status, user, expires):
    answer = read_answer(status)
    assert (answer.user, answer.expires) == (user, expires)
    assert "token" not in repr(answer)


@pytest.mark.parametrize(
    ("status", "says"),
    [
        (None, "status must be a mapping"),
        (["token"], "status must be a mapping"),
        ({}, "it must give token, or clientCertificateData and clientKeyData"),
        ({"token": ""}, "it must give token, or clientCertificateData and clientKeyData"),
        ({"token": ["secret"]}, "status.token must be text"),
        ({"token": "secret\nX-Remote-User: admin"}, "status.token must be one line of ASCII characters"),
        ({"token": "secret\ud800"}, "status.token must be one line of ASCII characters"),
        ({"clientCertificateData": "secret"}, f"status.clientKeyData is missing: {BOTH}"),
        ({"token": "t", "clientKeyData": "secret"}, f"status.clientCertificateData is missing: {BOTH}"),
        ({**CERTIFICATE, "clientKeyData": {}}, "status.clientKeyData must be text"),
        ({"token": "secret", "expirationTimestamp": "soon"}, FORM.format("'soon'")),
        ({"token": "secret", "expirationTimestamp": 5}, FORM.format("no text")),
        ({"token": "secret", "expirationTimestamp": ""}, FORM.format("''")),
        ({"token": "secret", "expirationTimestamp": TIME[:-1]}, FORM.format(repr(TIME[:-1]))),
        ({"token": "secret", "expirationTimestamp": "x" * 99}, FORM.format(f"'{'x' * 40}'")),
    ],
)
def test_what_is_not(status, says):
    with pytest.raises(ValueError) as caught:
        read_answer(status)
    assert str(caught.value) == says
