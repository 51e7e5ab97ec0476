"""Kubeconfigs that name an identity provider: when it is asked, for what, and what is kept."""

import asyncio
import base64
import logging
import re
import time

import pytest
import yaml

from rljob_client import oidc_refresh
from rljob_client.credentials import CredentialsError
from rljob_client.kubeconfig import from_kubeconfig
from rljob_client.oidc import read_provider
from tests.support.operator.certificates import Authority
from tests.support.operator.identity_provider import (
    DISCOVERY,
    TOKEN,
    identity_provider,
    token_of,
    token_until,
)
from tests.support.operator.kubeconfig import write_kubeconfig

SECRETS = ("hidden-secret", "hidden-refresh")


@pytest.fixture(scope="session")
def authority(tmp_path_factory):
    return Authority(tmp_path_factory.mktemp("certificates"))


@pytest.fixture
async def provider(authority):
    async with identity_provider(authority) as made:
        yield made


@pytest.fixture
def config(provider, authority):
    """Of an `auth-provider`; the token has ended."""
    known = base64.b64encode(authority.certificate.read_bytes()).decode()
    return {
        "idp-issuer-url": provider.url,
        "idp-certificate-authority-data": known,
        "client-id": "me",
        "client-secret": "hidden-secret",
        "refresh-token": "hidden-refresh",
        "id-token": token_until(-10),
    }


def written(folder, config, **more):
    return write_kubeconfig(
        folder / "config", user={"auth-provider": {"name": "oidc", "config": config}}, **more
    )


def kept_in(path):
    return yaml.safe_load(path.read_text())["users"][0]["user"]["auth-provider"]["config"]


async def read(path):
    """In a thread: the identity provider answers on this test's loop meanwhile."""
    return await asyncio.to_thread(from_kubeconfig, [path], None, {})


async def header(credentials):
    return (await credentials.authorization.identity()).header


async def refused(path):
    """The error's text, which holds no secret."""
    with pytest.raises(CredentialsError) as caught:
        await read(path)
    assert not [secret for secret in SECRETS if secret in str(caught.value)]
    return str(caught.value)


async def test_a_token_that_is_valid_is_used_until_it_ends(tmp_path, provider, config):
    path = written(tmp_path, {**config, "id-token": token_until(3600)})
    before = path.read_text()
    found = await read(path)
    assert await header(found) == f"Bearer {kept_in(path)['id-token']}"
    assert found.authorization.renewed_in() == pytest.approx(3540.0, abs=10.0)
    assert provider.asked == []
    assert path.read_text() == before


async def test_a_token_that_has_ended_is_asked_for_and_kept(tmp_path, provider, config):
    path = written(tmp_path, config)
    found = await read(path)
    kept = kept_in(path)
    # The provider takes back a refresh token that was used: the next one must be in the file.
    assert kept["refresh-token"] == "hidden-refresh+"
    assert await header(found) == f"Bearer {kept['id-token']}"
    changed = {key for key in config if kept[key] != config[key]}
    assert (changed, kept.keys()) == ({"id-token", "refresh-token"}, config.keys())


async def test_a_later_login_writes_nothing_but_tokens(tmp_path, provider, config, authority, monkeypatch):
    """Not our own authorities either, by which a provider is checked for which none are named."""
    del config["idp-certificate-authority-data"]
    monkeypatch.setattr("certifi.where", lambda: str(authority.certificate))
    path = written(tmp_path, {**config, "id-token": token_until(3600)})
    login = (await read(path)).authorization
    assert provider.asked == []
    others = {**yaml.safe_load(path.read_text()), "current-context": "another"}
    path.write_text(yaml.safe_dump(others))
    later = time.time() + 3590.0
    monkeypatch.setattr(time, "time", lambda: later)
    old = await login.identity()
    new = await login.other(old)
    kept = kept_in(path)
    assert new.header == f"Bearer {kept['id-token']}"
    assert (len(provider.asked), kept.keys()) == (1, config.keys())
    assert yaml.safe_load(path.read_text())["current-context"] == "another"


@pytest.mark.parametrize("missing", ["id-token", "client-secret"])
async def test_what_kubectl_does_without(tmp_path, provider, config, missing):
    del config[missing]
    path = written(tmp_path, config)
    found = await read(path)
    assert await header(found) == f"Bearer {kept_in(path)['id-token']}"
    (asked,) = provider.asked
    if missing == "client-secret":
        assert asked == {"grant_type": "refresh_token", "refresh_token": "hidden-refresh", "client_id": "me"}
    else:
        assert asked["Authorization"] == "Basic " + base64.b64encode(b"me:hidden-secret").decode()
        assert "client_secret" not in asked


async def test_a_provider_that_wants_the_secret_in_the_body(tmp_path, provider, config):
    provider.only_body = True
    await read(written(tmp_path, config))
    assert [sorted(asked) for asked in provider.asked] == [
        ["Authorization", "grant_type", "refresh_token"],
        ["client_id", "client_secret", "grant_type", "refresh_token"],
    ]


@pytest.mark.parametrize(
    ("missing", "says"),
    [
        ("refresh-token", "its id-token has ended, and there is no refresh-token .* log in anew"),
        ("idp-issuer-url", r"auth-provider\.config\.idp-issuer-url is missing"),
        ("client-id", r"auth-provider\.config\.client-id is missing"),
    ],
)
async def test_what_is_missing_is_named_without_the_others(tmp_path, config, missing, says):
    del config[missing]
    path = written(tmp_path, config)
    assert f"{path}: user 'u': " in (said := await refused(path))
    assert re.search(says, said)


@pytest.mark.parametrize("path", [DISCOVERY, TOKEN])
@pytest.mark.parametrize("how", ["silent", "dripping"])
async def test_a_provider_that_does_not_answer_is_not_waited_for(
    tmp_path, provider, config, monkeypatch, path, how
):
    monkeypatch.setattr(oidc_refresh, "_SECONDS", 0.5)
    setattr(provider, how, path)
    began = time.monotonic()
    said = await refused(written(tmp_path, config))
    assert time.monotonic() - began < 60.0  # it would go on for ever
    assert "not answer" in said or "Timeout" in said


@pytest.mark.parametrize(
    ("location", "follows"),
    [("/elsewhere", True), ("http://elsewhere/", False), (DISCOVERY, False), ("https://[::1", False)],
)
async def test_a_redirect_of_what_is_public_is_followed(tmp_path, provider, config, location, follows):
    """As by kubectl, but to no place where a secret could not be sent."""
    provider.location = location
    provider.says[DISCOVERY] = 302, {}
    provider.says["/elsewhere"] = 200, {"token_endpoint": f"{provider.url}{TOKEN}"}
    path = written(tmp_path, config)
    if follows:
        assert await header(await read(path)) == f"Bearer {kept_in(path)['id-token']}"
    else:
        assert "answers HTTP 302, and must answer 200" in await refused(path)


async def test_a_strange_certificate_gets_no_secret(tmp_path, provider, config):
    del config["idp-certificate-authority-data"]
    said = await refused(written(tmp_path, config))
    assert "user 'u': the identity provider gives no token: its certificate is not accepted" in said
    assert provider.asked == []


async def test_no_secret_is_logged(tmp_path, config, caplog):
    caplog.set_level(logging.DEBUG)
    path = written(tmp_path, config)
    await read(path)
    kept = kept_in(path)
    logged = caplog.text
    assert not [text for text in (*SECRETS, kept["id-token"], kept["refresh-token"]) if text in logged]


class Tunnel:
    """An HTTP proxy that connects whoever asks, and remembers how he asked."""

    def __init__(self):
        self.heads = []

    async def serve(self, reader, writer):
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        self.heads.append(head)
        host, port = head.split()[1].split(":")
        answers, asks = await asyncio.open_connection(host, int(port))
        writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
        await asyncio.gather(self._pass(reader, asks), self._pass(answers, writer))

    @staticmethod
    async def _pass(reader, writer):
        while chunk := await reader.read(65536):
            writer.write(chunk)
            await writer.drain()
        writer.close()


async def test_a_proxy_is_asked_for_a_tunnel(provider, config):
    tunnel = Tunnel()
    async with await asyncio.start_server(tunnel.serve, "127.0.0.1", 0) as server:
        proxy = f"http://me:pass%20word@127.0.0.1:{server.sockets[0].getsockname()[1]}"
        found = await asyncio.to_thread(oidc_refresh.refreshed, read_provider(config), lambda url: proxy)
    assert found.refresh_token == "hidden-refresh+"
    basic = base64.b64encode(b"me:pass word").decode()
    assert len(tunnel.heads) == 2
    assert all(f"proxy-authorization: Basic {basic}\r\n" in head for head in tunnel.heads)
    assert all(head.startswith(f"CONNECT {provider.url.removeprefix('https://')} ") for head in tunnel.heads)


async def test_a_proxy_that_is_not_there_is_told_without_its_password(provider, config):
    proxy = "http://me:hidden-secret@127.0.0.1:1"
    with pytest.raises(ValueError, match=r"^the proxy gives no connection to it$"):
        await asyncio.to_thread(oidc_refresh.refreshed, read_provider(config), lambda url: proxy)
    assert provider.asked == []


@pytest.mark.parametrize(
    ("path", "status", "said", "says"),
    [
        (DISCOVERY, 500, {}, "answers HTTP 500, and must answer 200"),
        (DISCOVERY, 200, [], "token_endpoint in .* must be an https URL"),
        (DISCOVERY, 200, {}, "token_endpoint in .* must be an https URL"),
        (
            DISCOVERY,
            200,
            {"token_endpoint": "http://elsewhere/"},
            "token_endpoint in .* must be an https URL",
        ),
        (TOKEN, 302, {}, "its token_endpoint answers HTTP 302"),
        (
            TOKEN,
            400,
            {"error": "invalid_grant", "error_description": "hidden-refresh"},
            r"answers HTTP 400 \(invalid_grant\); log in anew",
        ),
        (TOKEN, 400, {"error": "hidden-secret"}, "answers HTTP 400$"),
        (TOKEN, 200, {"access_token": "a"}, "answers no id_token: the login must ask for the scope openid"),
        (TOKEN, 200, {"id_token": "hidden-secret"}, "answers must be a JSON Web Token"),
        (TOKEN, 200, {"id_token": token_of({"exp": "soon"})}, '"exp" is a number of seconds'),
    ],
)
async def test_what_a_provider_says_that_is_no_token(tmp_path, provider, config, path, status, said, says):
    provider.says[path] = status, said
    file = written(tmp_path, config)
    before = file.read_text()
    assert re.search(says, await refused(file))
    assert file.read_text() == before
