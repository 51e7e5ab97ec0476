"""Kubeconfigs as clusters' providers write them: what is read from them, and who is believed."""

import asyncio
import base64
import ssl
import subprocess
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from rljob_client.credentials import CredentialsError
from rljob_client.kubeconfig import from_kubeconfig
from tests.support.operator.certificates import Authority
from tests.support.operator.credential_command import Command, shown
from tests.support.operator.kubeconfig import write_kubeconfig


@pytest.fixture(scope="session")
def authority(tmp_path_factory):
    return Authority(tmp_path_factory.mktemp("certificates"))


def read(path, *others, context=None, **environment):
    return from_kubeconfig([path, *others], context, environment)


def shown_by(credentials):
    return asyncio.run(credentials.authorization.identity())


def in_base64(path):
    return base64.b64encode(path.read_bytes()).decode()


def test_token_and_authority(tmp_path, authority):
    data = {"certificate-authority-data": in_base64(authority.certificate)}
    found = read(write_kubeconfig(tmp_path / "config", data, {"token": "secret"}))
    assert (found.server, found.namespace) == ("https://api:6443", "team")
    assert shown_by(found).header == "Bearer secret"
    assert found.tls.verify_mode is ssl.CERT_REQUIRED
    assert len(found.tls.get_ca_certs()) == 1


def test_files_are_relative_to_the_kubeconfig(tmp_path, authority):
    own = authority.sign("test")
    files = {"ca.pem": authority.certificate, "cert.pem": own.certificate, "key.pem": own.key}
    for name, file in files.items():
        (tmp_path / name).write_bytes(file.read_bytes())
    (tmp_path / "token").write_text("from-file\n")
    user = {"client-certificate": "cert.pem", "client-key": "key.pem", "tokenFile": "token"}
    found = read(write_kubeconfig(tmp_path / "config", {"certificate-authority": "ca.pem"}, user))
    assert shown_by(found).header == "Bearer from-file"
    assert len(found.tls.get_ca_certs()) == 1


@pytest.mark.parametrize(
    ("user", "header"),
    [
        ({"token": "", "tokenFile": "token"}, "Bearer from-file"),
        ({"token": "old", "tokenFile": "token"}, "Bearer from-file"),
        ({"token": "old", "tokenFile": "missing"}, "Bearer old"),
        ({"token": "old", "tokenFile": "empty"}, "Bearer old"),
        ({"token": "old", "tokenFile": ""}, "Bearer old"),
    ],
)
async def test_a_tokens_file_goes_before_a_token_as_for_kubectl(tmp_path, user, header):
    (tmp_path / "token").write_text("from-file\n")
    (tmp_path / "empty").touch()
    now = 0.0
    path = write_kubeconfig(tmp_path / "config", user=user)
    found = from_kubeconfig([path], clock=lambda: now)
    assert (await found.authorization.identity()).header == header
    (tmp_path / "token").write_text("rotated\n")
    now = 61.0
    rotated = (await found.authorization.identity()).header
    assert rotated == ("Bearer rotated" if header == "Bearer from-file" else header)


@pytest.mark.parametrize("content", ["a\nb", "a\u00e9"], ids=ascii)
def test_a_token_s_file_that_no_request_could_show(tmp_path, content):
    (tmp_path / "token").write_text(content)
    path = write_kubeconfig(tmp_path / "config", user={"tokenFile": "token"})
    with pytest.raises(
        CredentialsError, match=f"^{path}: user 'u': its tokenFile must hold one line of ASCII"
    ):
        read(path)


def test_a_name_without_a_password_is_shown_as_kubectl_does(tmp_path):
    found = read(write_kubeconfig(tmp_path / "config", user={"username": "j\u00e9"}))
    assert shown_by(found).header == "Basic " + base64.b64encode("j\u00e9:".encode()).decode()


def test_files_are_relative_to_the_one_of_several_that_names_them(tmp_path, authority):
    (tmp_path / "other").mkdir()
    (tmp_path / "ca.pem").write_bytes(authority.certificate.read_bytes())
    own = authority.sign("test")
    for name, file in {"cert.pem": own.certificate, "key.pem": own.key}.items():
        (tmp_path / "other" / name).write_bytes(file.read_bytes())
    cluster = write_kubeconfig(tmp_path / "config", {"certificate-authority": "ca.pem"}, users=[])
    user = {"client-certificate": "cert.pem", "client-key": "key.pem"}
    found = read(cluster, write_kubeconfig(tmp_path / "other" / "config", user=user))
    assert shown_by(found).certificate == own.certificate.read_bytes()
    assert len(found.tls.get_ca_certs()) == 1


def test_what_is_empty_is_not_there_as_for_kubectl(tmp_path, authority):
    (tmp_path / "ca.pem").write_bytes(authority.certificate.read_bytes())
    cluster = {"certificate-authority": "ca.pem", "certificate-authority-data": "", "proxy-url": ""}
    found = read(write_kubeconfig(tmp_path / "config", cluster, {"token": "t", "client-key-data": None}))
    assert len(found.tls.get_ca_certs()) == 1 and found.proxy is None


def test_nothing_secret_stays_in_a_file(tmp_path, authority, monkeypatch):
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(temporary))
    own = authority.sign("test")
    user = {"client-certificate-data": in_base64(own.certificate), "client-key-data": in_base64(own.key)}
    read(write_kubeconfig(tmp_path / "config", user=user))
    assert not list(temporary.iterdir())


@pytest.mark.parametrize("kind", ["file", "data"])
def test_a_key_with_a_pass_phrase_is_refused_and_nobody_asked(tmp_path, authority, kind):
    own = authority.sign("test")
    encrypted = tmp_path / "key.pem"
    command = ["openssl", "pkey", "-in", own.key, "-aes256", "-passout", "pass:hidden", "-out", encrypted]
    subprocess.run(command, check=True)
    user = {"client-certificate": str(own.certificate), "client-key": str(encrypted)}
    if kind == "data":
        user = {f"{key}-data": in_base64(Path(file)) for key, file in user.items()}
    with pytest.raises(CredentialsError, match=r"the client key has a pass phrase, .*: openssl pkey -in"):
        read(write_kubeconfig(tmp_path / "config", user=user))


def test_verification_is_off_only_where_asked(tmp_path):
    assert read(write_kubeconfig(tmp_path / "a")).tls.verify_mode is ssl.CERT_REQUIRED
    insecure = read(write_kubeconfig(tmp_path / "b", {"insecure-skip-tls-verify": True}))
    assert insecure.tls.verify_mode is ssl.CERT_NONE


def test_plain_http_has_no_tls(tmp_path):
    assert read(write_kubeconfig(tmp_path / "a", {"server": "http://127.0.0.1:1"})).tls is None


def test_of_several_files_the_first_that_says_something_wins(tmp_path):
    def context(name, cluster):
        return {"name": name, "context": {"cluster": cluster, "user": "u"}}

    first = write_kubeconfig(
        tmp_path / "first", user={"token": "one"}, contexts=[context("a", "other")], **{"current-context": ""}
    )
    other = [{"name": "other", "cluster": {"server": "https://other"}}]
    second = write_kubeconfig(
        tmp_path / "second",
        user={"token": "two"},
        contexts=[context("a", "c"), context("b", "c")],
        clusters=other,
        **{"current-context": "a"},
    )
    third = write_kubeconfig(tmp_path / "third", **{"current-context": "b"})
    found = read(first, second, third)
    assert (found.server, shown_by(found).header) == ("https://other", "Bearer one")
    assert read(first, second, third, context="b").server == "https://api:6443"


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"current-context": ""}, "no current-context"),
        ({"current-context": "there"}, "no context named 'there'"),
        ({"clusters": []}, "no cluster named 'c'"),
        ({"contexts": [{"name": "here", "context": None}]}, "context 'here' names no cluster"),
        ({"contexts": [{"name": "here"}]}, "context 'here' names no cluster"),
        ({"cluster": {"server": "https://api:99999"}}, "cluster 'c': server must be an http"),
        ({"cluster": {"server": "https://[::1"}}, "cluster 'c': server must be an http"),
        ({"clusters": {"c": {}}}, "clusters must be a list"),
        ({"users": []}, "no user named 'u'"),
        ({"users": [{"user": {}}]}, "an entry of users has no name"),
        ({"contexts": [{"name": "here", "context": ["c"]}]}, "context 'here' must be a mapping"),
        ({"cluster": {"server": "api:6443"}}, "server must be an http"),
        ({"cluster": {"proxy-url": "socks5://p"}}, "SOCKS is not supported"),
        ({"cluster": {"insecure-skip-tls-verify": "false"}}, "cluster 'c': insecure-skip-tls-verify must be"),
        ({"contexts": [{"name": "here", "context": {"cluster": 5}}]}, "context 'here': cluster must be text"),
        ({"user": {"token": "a\nb"}}, "user 'u': token must be one line of ASCII"),
        ({"cluster": {"certificate-authority-data": "?"}}, "unusable certificate or key"),
        ({"cluster": {"certificate-authority": "gone"}}, "File does not exist: .*gone"),
        (
            {"user": {"auth-provider": {"name": "gcp"}}},
            "user 'u': auth-provider 'gcp' is not supported; allowed: oidc, or the provider's command",
        ),
        ({"user": {"auth-provider": {"name": "oidc"}}}, r"auth-provider\.config\.idp-issuer-url is missing"),
        (
            {"user": {"client-certificate-data": "AAAA", "client-key-data": "AAAA"}},
            "unusable certificate or key",
        ),
    ],
)
def test_what_is_wrong_with_a_kubeconfig(tmp_path, wrong, says):
    with pytest.raises(CredentialsError, match=says) as caught:
        read(write_kubeconfig(tmp_path / "config", **wrong))
    assert str(tmp_path / "config") in str(caught.value)


@pytest.mark.parametrize(
    ("text", "says"), [("users: [{user: {token: secret}", "not valid YAML"), ("- secret", "not a kubeconfig")]
)
def test_a_broken_kubeconfig_is_not_quoted(tmp_path, text, says):
    (tmp_path / "config").write_text(text)
    with pytest.raises(CredentialsError, match=says) as caught:
        read(tmp_path / "config")
    assert "secret" not in str(caught.value)


def test_secrets_are_not_shown(tmp_path):
    user = {"username": "me", "password": "secret"}
    found = read(write_kubeconfig(tmp_path / "config", {"proxy-url": "http://me:secret@proxy"}, user))
    assert shown_by(found).header == "Basic " + base64.b64encode(b"me:secret").decode()
    assert found.proxy == "http://me:secret@proxy"
    assert "secret" not in repr(found)


def test_somebody_else_s_name(tmp_path):
    user = {"token": "t", "as": "jane", "as-uid": "7", "as-groups": ["a", "b"]}
    user["as-user-extra"] = {"scope": ["x", "y"]}
    assert read(write_kubeconfig(tmp_path / "config", user=user)).headers == (
        ("Impersonate-User", "jane"),
        ("Impersonate-Uid", "7"),
        ("Impersonate-Group", "a"),
        ("Impersonate-Group", "b"),
        ("Impersonate-Extra-scope", "x"),
        ("Impersonate-Extra-scope", "y"),
    )


@pytest.mark.parametrize(
    ("server", "environment", "proxy"),
    [
        ("https://api:6443", {}, None),
        ("https://api:6443", {"HTTPS_PROXY": "http://p:1"}, "http://p:1"),
        ("https://api:6443", {"https_proxy": "http://p:1", "no_proxy": "api"}, None),
        ("https://10.1.2.3:6443", {"HTTPS_PROXY": "http://p:1", "NO_PROXY": "10.0.0.0/8"}, None),
        ("https://10.1.2.3:6443", {"HTTPS_PROXY": "http://p:1", "NO_PROXY": "10.2.0.0/16"}, "http://p:1"),
        ("http://api:8080", {"HTTPS_PROXY": "http://p:1"}, None),
        # As for kubectl, which reaches this machine directly.
        ("https://127.0.0.1:6443", {"HTTPS_PROXY": "http://p:1"}, None),
        ("https://localhost:6443", {"HTTPS_PROXY": "http://p:1"}, None),
    ],
)
def test_the_proxy_of_the_environment(tmp_path, server, environment, proxy):
    path = write_kubeconfig(tmp_path / "config", {"server": server})
    assert read(path, **environment).proxy == proxy


@pytest.mark.parametrize(
    "proxy", ["socks5://me:hidden@p", "proxy:3128", "http://me:hidden@p:99999", "http://"]
)
def test_a_proxy_of_the_environment_that_cannot_be_used(tmp_path, proxy):
    path = write_kubeconfig(tmp_path / "config", {"server": "https://api"})
    says = f"^{path}: the proxy of the environment must be .*SOCKS is not supported"
    with pytest.raises(CredentialsError, match=says) as caught:
        read(path, HTTPS_PROXY=proxy)
    assert "hidden" not in str(caught.value)


def test_a_proxy_and_a_name_of_the_cluster_s_own(tmp_path):
    cluster = {"proxy-url": "http://own:1", "tls-server-name": "kubernetes"}
    found = read(write_kubeconfig(tmp_path / "config", cluster), HTTPS_PROXY="http://p:1")
    assert (found.proxy, found.server_name) == ("http://own:1", "kubernetes")


@pytest.fixture
def command(tmp_path):
    return Command(tmp_path)


def test_a_command_that_logs_in(tmp_path, command):
    found = read(write_kubeconfig(tmp_path / "config", user=command.answers({"token": "secret"})))
    assert shown_by(found).header == "Bearer secret"
    (asked,) = command.asked
    assert asked["spec"]["cluster"]["server"] == "https://api:6443/"
    assert "secret" not in (tmp_path / "config").read_text()


def test_a_token_s_file_beside_a_command_says_nothing_of_its_answer(tmp_path, command):
    user = {**command.answers({"token": "secret"}), "tokenFile": "missing"}
    login = read(write_kubeconfig(tmp_path / "config", user=user)).authorization
    assert asyncio.run(login.identity()).header == "Bearer secret"
    assert login.renewed_in() is None


def test_a_command_that_gives_a_certificate(tmp_path, command, authority):
    user = command.answers(shown(authority.sign("exec")))
    found = read(write_kubeconfig(tmp_path / "config", user=user))
    who = shown_by(found)
    assert who.header is None
    assert _shown_to_a_server(who.tls, authority) == "exec"
    assert found.tls is who.tls


def test_a_command_that_gives_both(tmp_path, command, authority):
    """As kubectl, which sends both."""
    user = command.answers({**shown(authority.sign("exec")), "token": "secret"})
    who = shown_by(read(write_kubeconfig(tmp_path / "config", user=user)))
    assert who.header == "Bearer secret"
    assert _shown_to_a_server(who.tls, authority) == "exec"


async def test_a_command_that_gives_no_certificate_any_more(tmp_path, command, authority):
    """The old one would go on to say who one was."""
    user = command.answers(shown(authority.sign("exec")), {"token": "secret"})
    login = read(write_kubeconfig(tmp_path / "config", user=user)).authorization
    old = await login.identity()
    new = await login.other(old)
    assert (new.header, new.certificate) == ("Bearer secret", None)
    assert new.tls is not None
    assert new.tls is not old.tls


def _shown_to_a_server(tls, authority):
    """The common name of the certificate that a client with this TLS shows."""
    own = authority.sign("server")
    server = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=authority.certificate)
    server.verify_mode = ssl.CERT_REQUIRED
    server.load_cert_chain(own.certificate, own.key)
    tls.check_hostname, tls.verify_mode = False, ssl.CERT_NONE
    there, back = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = tls.wrap_bio(back, there), server.wrap_bio(there, back, server_side=True)
    for end in (*ends, *ends, ends[1]):
        with suppress(ssl.SSLWantReadError):
            end.do_handshake()
    (((_, name),),) = [part for part in ends[1].getpeercert()["subject"] if part[0][0] == "commonName"]
    return name


@pytest.mark.parametrize(
    ("seconds", "renewed_in"), [(30, 15), (100, 50), (3600, 3540), (None, None)], ids=str
)
def test_a_token_is_asked_for_again_before_it_expires(tmp_path, command, seconds, renewed_in):
    status = {"token": "secret"}
    if seconds is not None:
        until = datetime.now(UTC) + timedelta(seconds=seconds)
        status["expirationTimestamp"] = until.isoformat()
    found = read(write_kubeconfig(tmp_path / "config", user=command.answers(status)))
    assert found.authorization.renewed_in() == (renewed_in and pytest.approx(renewed_in, abs=5.0))


@pytest.mark.parametrize(
    ("program", "says"),
    [
        (None, "login: No such file or directory; install it from here"),
        ("echo no such account >&2; exit 3", "login: it ended with exit code 3: no such account"),
        ("echo hello", "its answer must be an ExecCredential, as JSON"),
        ("""echo '{"apiVersion": "v", "kind": "y"}'""", "status is missing in its answer"),
        (
            """echo '{"apiVersion": "v", "kind": "y", "status": {}}'""",
            "it must give token, or clientCertificateData and clientKeyData",
        ),
        ("""echo '{"apiVersion": "v", "kind": "y", "status": null}'""", "status must be a mapping"),
        (
            """echo '{"apiVersion": "w", "kind": "y", "status": {}}'""",
            "its answer's apiVersion must be v, as in the kubeconfig",
        ),
        ("echo 5", "its answer must be an ExecCredential, as JSON"),
        ("echo null", "its answer must be an ExecCredential, as JSON"),
        ("""echo '["apiVersion", "kind", "status"]'""", "its answer must be an ExecCredential, as JSON"),
        ("printf '\\377'", "its answer must be an ExecCredential, as JSON"),
        (f"printf '{'[' * 100_000}'", "its answer must be an ExecCredential, as JSON"),
    ],
)
def test_a_command_that_fails_says_why(tmp_path, program, says):
    if program is not None:
        (tmp_path / "login").write_text(f"#!/bin/sh\n{program}\n")
        (tmp_path / "login").chmod(0o700)
    user = {"exec": {"apiVersion": "v", "command": "./login", "installHint": "install it from here"}}
    with pytest.raises(CredentialsError, match=says) as caught:
        read(write_kubeconfig(tmp_path / "config", user=user))
    assert f"{tmp_path / 'config'}: user 'u': exec ./login" in str(caught.value)


@pytest.mark.parametrize(
    ("exec_", "says"),
    [
        ([], "exec must be a mapping with apiVersion and command"),
        ({"apiVersion": "v", "command": "./login", "args": [5]}, r"exec\.args\[0\] must be text"),
    ],
)
def test_what_is_no_command_is_refused_with_its_field(tmp_path, exec_, says):
    with pytest.raises(CredentialsError, match=f"config: user 'u': {says}"):
        read(write_kubeconfig(tmp_path / "config", user={"exec": exec_}))
