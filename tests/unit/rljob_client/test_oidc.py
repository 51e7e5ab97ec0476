"""What kubeconfigs and identity providers say of tokens."""

import base64
import json

import pytest

from rljob_client.oidc import EARLY_SECONDS, Provider, read_provider, token_ends
from rljob_client.shared_login import COMMAND_PACE
from tests.support.operator.identity_provider import token_of

CONFIG = {"idp-issuer-url": "https://provider/", "client-id": "me"}
NO_TOKEN = "must be a JSON Web Token"


def test_what_is_empty_is_not_there():
    found = read_provider({**CONFIG, "id-token": "", "client-secret": None, "extra-scopes": "groups"})
    assert found == Provider("https://provider", "me")


@pytest.mark.parametrize(
    ("key", "value", "says"),
    [
        ("client-id", "", "client-id is missing"),
        ("client-id", 5, "client-id must be text"),
        ("client-secret", ["hidden"], "client-secret must be text"),
        ("id-token", {"hidden": 1}, "id-token must be text"),
        ("id-token", "hidden", f"id-token {NO_TOKEN}"),
        ("refresh-token", True, "refresh-token must be text"),
        ("idp-issuer-url", None, "idp-issuer-url is missing"),
        ("idp-issuer-url", "http://provider", "idp-issuer-url must be an https URL"),
        (
            "idp-issuer-url",
            "https://me:hidden@provider",
            "idp-issuer-url must be an https URL without a user",
        ),
        ("idp-issuer-url", "https://provider:hidden", "idp-issuer-url must be an https URL"),
        ("idp-issuer-url", "https://a b", "idp-issuer-url must be an https URL"),
        ("idp-issuer-url", "https://[::1", "idp-issuer-url must be an https URL"),
        ("idp-issuer-url", "https://", "idp-issuer-url must be an https URL"),
        ("idp-certificate-authority", 5, "idp-certificate-authority must be text"),
    ],
)
def test_what_is_wrong_is_named_and_not_shown(key, value, says):
    with pytest.raises(ValueError, match=rf"^auth-provider\.config\.{says}") as caught:
        read_provider({**CONFIG, key: value})
    assert "hidden" not in str(caught.value)


@pytest.mark.parametrize(
    "issuer", ["http://localhost:5556/dex", "http://127.0.0.1:5556", "https://provider:1"]
)
def test_whom_a_secret_may_be_sent_to(issuer):
    assert read_provider({**CONFIG, "idp-issuer-url": issuer}).issuer == issuer


@pytest.mark.parametrize(("content", "ends"), [({"exp": 5}, 5.0), ({"exp": 5.5}, 5.5), ({}, 0.0)], ids=str)
def test_until_when_a_token_is_valid(content, ends):
    assert token_ends(token_of(content)) == ends


@pytest.mark.parametrize(
    "token",
    [
        "hidden",
        "a.hidden.b",
        "a.b",
        token_of({"exp": 5}) + ".more",
        token_of({"exp": 5}).replace(".", ".+", 1),
        token_of({"exp": 5}) + "\n",
        token_of([5]),
        token_of("hidden"),
        f"a.{base64.urlsafe_b64encode(b'[' * 100_000).decode()}.b",
        f"a.{base64.urlsafe_b64encode(bytes([255] * 6)).decode()}.b",
        token_of({"exp": "hidden"}),
        token_of({"exp": [5]}),
        token_of({"exp": 10**400}),
        f"a.{base64.urlsafe_b64encode(json.dumps({'exp': float('inf')}).encode()).decode().rstrip('=')}.b",
    ],
    ids=range(14),
)
def test_what_is_no_token(token):
    with pytest.raises(ValueError, match=f"^{NO_TOKEN}") as caught:
        token_ends(token)
    assert "hidden" not in str(caught.value)


@pytest.mark.parametrize(
    ("ends", "refresh_token", "due"),
    [
        (1000.0 + EARLY_SECONDS, "r", False),
        (999.0 + EARLY_SECONDS, "r", True),
        # What cannot be renewed is used until it ends.
        (1010.0, "", False),
    ],
)
def test_when_another_token_is_asked_for(ends, refresh_token, due):
    provider = Provider("https://provider", "me", refresh_token=refresh_token, id_token="t", ends=ends)
    assert provider.due(1000.0) is due


@pytest.mark.parametrize(
    ("id_token", "says"), [("t", "its id-token has ended"), ("", "id-token is missing")], ids=str
)
def test_what_has_ended_and_cannot_be_renewed(id_token, says):
    provider = Provider("https://provider", "me", id_token=id_token, ends=1009.0 if id_token else 0.0)
    with pytest.raises(
        ValueError, match=f"{says}, and there is no refresh-token to get another one with: log in"
    ):
        provider.due(1000.0)


def test_a_login_that_is_wanted_early_asks_for_another_token():
    assert COMMAND_PACE.early_seconds < EARLY_SECONDS
