"""Where the API server is and who we are."""

import base64
import ssl

import pytest
import yaml

from rljob_operator.kube.credentials import (
    CredentialsError,
    TokenFile,
    find_credentials,
    from_kubeconfig,
    in_cluster,
)
from tests.support.operator.certificates import Authority


@pytest.fixture(scope="session")
def authority(tmp_path_factory):
    return Authority(tmp_path_factory.mktemp("certificates"))


def write(path, cluster=None, user=None, **top):
    """A kubeconfig with one context."""
    config = {
        "current-context": "here",
        "contexts": [{"name": "here", "context": {"cluster": "c", "user": "u", "namespace": "team"}}],
        "clusters": [{"name": "c", "cluster": {"server": "https://api:6443/", **(cluster or {})}}],
        "users": [{"name": "u", "user": user or {}}],
    }
    path.write_text(yaml.safe_dump({**config, **top}))
    return path


def test_token_and_authority_from_a_kubeconfig(tmp_path, authority):
    authority = base64.b64encode(authority.certificate.read_bytes()).decode()
    found = from_kubeconfig(
        write(tmp_path / "config", {"certificate-authority-data": authority}, {"token": "secret"})
    )
    assert (found.server, found.namespace, found.token.read()) == ("https://api:6443", "team", "secret")
    assert found.tls.verify_mode is ssl.CERT_REQUIRED
    assert len(found.tls.get_ca_certs()) == 1


def test_files_are_relative_to_the_kubeconfig(tmp_path, authority):
    own = authority.sign("test")
    for name, file in (
        ("ca.pem", authority.certificate),
        ("cert.pem", own.certificate),
        ("key.pem", own.key),
    ):
        (tmp_path / name).write_bytes(file.read_bytes())
    (tmp_path / "token").write_text("from-file\n")
    user = {"client-certificate": "cert.pem", "client-key": "key.pem", "tokenFile": "token"}
    found = from_kubeconfig(write(tmp_path / "config", {"certificate-authority": "ca.pem"}, user))
    assert found.token.read() == "from-file"
    assert len(found.tls.get_ca_certs()) == 1


def test_verification_is_off_only_where_asked(tmp_path):
    assert from_kubeconfig(write(tmp_path / "a")).tls.verify_mode is ssl.CERT_REQUIRED
    insecure = from_kubeconfig(write(tmp_path / "b", {"insecure-skip-tls-verify": True}))
    assert insecure.tls.verify_mode is ssl.CERT_NONE


def test_plain_http_has_no_tls(tmp_path):
    assert from_kubeconfig(write(tmp_path / "a", {"server": "http://127.0.0.1:1"})).tls is None


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"current-context": ""}, "no current-context"),
        ({"current-context": "there"}, "no context named 'there'"),
        ({"clusters": []}, "no cluster named 'c'"),
        ({"users": []}, "no user named 'u'"),
        ({"cluster": {"server": "api:6443"}}, "server must be an http"),
        ({"cluster": {"proxy-url": "http://p"}}, "proxy-url is not supported"),
        ({"cluster": {"certificate-authority-data": "?"}}, "certificate-authority-data is not base64"),
        ({"cluster": {"certificate-authority": "gone"}}, "certificate-authority gone: No such file"),
        (
            {"user": {"exec": {"command": "login"}}},
            "user 'u': exec is not supported; allowed: token, tokenFile",
        ),
        (
            {"user": {"client-certificate-data": "AAAA", "client-key-data": "AAAA"}},
            "unusable certificate or key",
        ),
    ],
)
def test_what_is_wrong_with_a_kubeconfig(tmp_path, wrong, says):
    with pytest.raises(CredentialsError, match=says) as caught:
        from_kubeconfig(write(tmp_path / "config", **wrong))
    assert str(tmp_path / "config") in str(caught.value)


def test_a_broken_kubeconfig_is_not_quoted(tmp_path):
    path = tmp_path / "config"
    path.write_text("users: [{user: {token: secret}")
    with pytest.raises(CredentialsError, match="not valid YAML") as caught:
        from_kubeconfig(path)
    assert "secret" not in str(caught.value)


@pytest.fixture
def service_account(tmp_path, authority):
    folder = tmp_path / "serviceaccount"
    folder.mkdir()
    (folder / "token").write_text("pod-token")
    (folder / "namespace").write_text("rljob-system\n")
    (folder / "ca.crt").write_bytes(authority.certificate.read_bytes())
    return folder


@pytest.mark.parametrize(
    ("host", "server"), [("10.96.0.1", "https://10.96.0.1:6443"), ("fd00::1", "https://[fd00::1]:6443")]
)
def test_in_a_pod(service_account, host, server):
    environment = {"KUBERNETES_SERVICE_HOST": host, "KUBERNETES_SERVICE_PORT": "6443"}
    found = find_credentials(environment=environment, service_account=service_account)
    assert (found.server, found.namespace, found.token.read()) == (server, "rljob-system", "pod-token")


def test_an_incomplete_service_account_says_where(service_account):
    (service_account / "ca.crt").unlink()
    with pytest.raises(CredentialsError, match="incomplete service account"):
        in_cluster({"KUBERNETES_SERVICE_HOST": "10.96.0.1"}, service_account)


def test_the_order_of_places(tmp_path, service_account):
    (tmp_path / ".kube").mkdir()
    write(tmp_path / ".kube" / "config", {"server": "https://home"})
    environment = {"HOME": str(tmp_path)}

    def server(**more):
        return find_credentials(environment={**environment, **more}, service_account=service_account).server

    assert server() == "https://home"
    assert server(KUBERNETES_SERVICE_HOST="pod") == "https://pod:443"
    named = str(write(tmp_path / "named", {"server": "https://named"}))
    assert server(KUBERNETES_SERVICE_HOST="pod", KUBECONFIG=named) == "https://named"
    with pytest.raises(CredentialsError, match="several files"):
        server(KUBECONFIG=f"{named}:{named}")
    with pytest.raises(CredentialsError, match="set KUBECONFIG, or run in a pod"):
        server(HOME=str(tmp_path / "nobody"))


def test_a_rotated_token_is_used_within_a_minute(tmp_path):
    path, now = tmp_path / "token", [0.0]
    token = TokenFile(path, clock=lambda: now[0])
    path.write_text("old")
    assert token.read() == "old"
    path.write_text("new")
    now[0] = 59.0
    assert token.read() == "old"
    now[0] = 60.0
    assert token.read() == "new"


def test_a_refused_token_is_read_again_at_once(tmp_path):
    path = tmp_path / "token"
    token = TokenFile(path, clock=lambda: 0.0)
    path.write_text("old")
    assert token.read() == "old"
    assert not token.refused()
    path.write_text("new")
    assert token.refused()
    assert token.read() == "new"


def test_a_missing_token_says_where(tmp_path):
    with pytest.raises(CredentialsError, match=r"token: cannot read the token: No such file"):
        TokenFile(tmp_path / "token").read()


def test_secrets_are_not_shown(tmp_path):
    assert "secret" not in repr(from_kubeconfig(write(tmp_path / "config", user={"token": "secret"})))
