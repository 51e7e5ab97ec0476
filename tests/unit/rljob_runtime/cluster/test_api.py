"""The driver's HTTP client against a server in trouble."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rljob_runtime.cluster.api import ApiClient, ApiRefused, ApiUnavailable
from rljob_runtime.cluster.credentials import CredentialsError, FixedToken, TokenFile, from_kubeconfig, in_pod
from tests.support.runtime.api_server import Answer, cut, reply, serving, stream

STATUS = {"kind": "Status", "reason": "Forbidden", "message": "no"}

TROUBLE: dict[str, tuple[Answer, type[Exception], str]] = {
    "not allowed": (reply(403, **STATUS), ApiRefused, "403 Forbidden: no"),
    "not there": (reply(404, reason="NotFound", message="gone"), ApiRefused, "404 NotFound: gone"),
    "overloaded": (reply(429, **STATUS), ApiUnavailable, "429"),
    "broken": (reply(500, **STATUS), ApiUnavailable, "500"),
    "starting": (reply(503, **STATUS), ApiUnavailable, "503"),
    "an unknown error": (stream(b"<html>"), ApiUnavailable, "no JSON object"),
    "cut off": (cut, ApiUnavailable, "GET /x"),
}


@pytest.mark.parametrize("case", TROUBLE)
async def test_an_error_says_whether_to_try_again(case: str) -> None:
    answer, error, message = TROUBLE[case]
    async with serving(answer) as server, ApiClient(server.credentials()) as client:
        with pytest.raises(error, match=message):
            await client.get("/x")


async def test_nobody_listening_is_unavailable() -> None:
    async with serving(reply()) as server:
        credentials = server.credentials()
    async with ApiClient(credentials) as client:
        with pytest.raises(ApiUnavailable):
            await client.get("/x")


async def test_apply_takes_fields_over_as_its_manager() -> None:
    async with serving(reply(kind="X")) as server, ApiClient(server.credentials(FixedToken("t"))) as client:
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


def test_a_token_is_read_again_after_a_minute(tmp_path: Path) -> None:
    now = [0.0]
    file = tmp_path / "token"
    file.write_text("old")
    token = TokenFile(file, clock=lambda: now[0])
    assert token.read() == "old"
    file.write_text("new")
    now[0] = 59.0
    assert token.read() == "old"
    now[0] = 60.0
    assert token.read() == "new"


async def collect(client: ApiClient) -> list[dict[str, Any]]:
    return [event async for event in client.watch("/x", {"fieldSelector": "metadata.name=a"})]


async def test_a_watch_yields_events_of_any_length() -> None:
    long = {"type": "MODIFIED", "object": {"blob": "x" * 500_000}}
    parts = (b'{"type": "AD', b'DED"}\n{"type": "BOOK', b'MARK"}\n', long)
    async with serving(stream(*parts)) as server, ApiClient(server.credentials()) as client:
        assert await collect(client) == [{"type": "ADDED"}, {"type": "BOOKMARK"}, long]
    assert server.seen[0].query["watch"] == "1"
    assert server.seen[0].query["fieldSelector"] == "metadata.name=a"


@pytest.mark.parametrize("answer", [stream(b"no json\n"), cut], ids=["garbage", "cut off"])
async def test_a_watch_that_breaks_is_unavailable(answer: Answer) -> None:
    async with serving(answer) as server, ApiClient(server.credentials()) as client:
        with pytest.raises(ApiUnavailable, match="watching /x"):
            await collect(client)


def kubeconfig(folder: Path, **user: str) -> Path:
    file = folder / "config"
    file.write_text(
        "current-context: c\n"
        "contexts: [{name: c, context: {cluster: k, user: u}}]\n"
        "clusters: [{name: k, cluster: {server: 'http://127.0.0.1:1/'}}]\n"
        f"users: [{{name: u, user: {user}}}]\n"
    )
    return file


def test_a_kubeconfig_with_a_token(tmp_path: Path) -> None:
    found = from_kubeconfig(kubeconfig(tmp_path, token="secret"))
    assert (found.server, found.tls) == ("http://127.0.0.1:1", None)
    assert found.token is not None and found.token.read() == "secret"
    assert "secret" not in repr(found)


BROKEN: dict[str, tuple[Callable[[Path], Any], str]] = {
    "no kubeconfig": (lambda folder: from_kubeconfig(folder / "none"), "cannot be read: No such file"),
    "no YAML": (lambda folder: from_kubeconfig(_written(folder, "a: [secret")), "is not YAML"),
    "no context": (lambda folder: from_kubeconfig(_written(folder, "a: 1")), "is no kubeconfig"),
    "no token": (lambda folder: from_kubeconfig(kubeconfig(folder, username="x")), "no token"),
    "no pod": (lambda folder: in_pod({}, folder), "use `rljob run`"),
    "no account": (lambda folder: in_pod({"KUBERNETES_SERVICE_HOST": "h"}, folder), "no token can be read"),
}


def _written(folder: Path, text: str) -> Path:
    (folder / "config").write_text(text)
    return folder / "config"


@pytest.mark.parametrize("case", BROKEN)
def test_missing_credentials_are_named_without_secrets(tmp_path: Path, case: str) -> None:
    make, message = BROKEN[case]
    with pytest.raises(CredentialsError, match=message) as caught:
        make(tmp_path)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(("host", "server"), [("10.0.0.1", "10.0.0.1"), ("fd00::1", "[fd00::1]")])
def test_a_pod_s_service_account(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, host: str, server: str
) -> None:
    (tmp_path / "token").write_text("t")
    monkeypatch.setattr("ssl.create_default_context", lambda **_: None)
    found = in_pod({"KUBERNETES_SERVICE_HOST": host, "KUBERNETES_SERVICE_PORT": "6443"}, tmp_path)
    assert found.server == f"https://{server}:6443"
