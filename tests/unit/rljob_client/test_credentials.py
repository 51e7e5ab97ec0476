"""Where the API server is looked for, and a pod's service account."""

import asyncio

import pytest

from rljob_client.credentials import CredentialsError, find_credentials, in_cluster
from tests.support.operator.certificates import Authority
from tests.support.operator.kubeconfig import write_kubeconfig

POD = {"KUBERNETES_SERVICE_HOST": "10.96.0.1"}


async def header(login):
    return (await login.identity()).header


@pytest.fixture(scope="session")
def authority(tmp_path_factory):
    return Authority(tmp_path_factory.mktemp("certificates"))


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
    assert (found.server, found.namespace) == (server, "rljob-system")
    assert asyncio.run(header(found.authorization)) == "bearer pod-token"
    assert len(found.tls.get_ca_certs()) == 1


@pytest.mark.parametrize(
    ("missing", "says"),
    [
        ("token", "serviceaccount: Service token file does not exist"),
        ("namespace", "incomplete service account"),
        ("ca.crt", "serviceaccount: Service certification file does not exist"),
    ],
)
def test_an_incomplete_service_account_says_where(service_account, missing, says):
    (service_account / missing).unlink()
    with pytest.raises(CredentialsError, match=says):
        in_cluster(POD, service_account)


def test_outside_of_a_pod_there_is_no_service_account(service_account):
    with pytest.raises(CredentialsError, match="not in a pod: KUBERNETES_SERVICE_HOST is not set"):
        in_cluster({}, service_account)


def test_a_rotated_authority_is_taken_in(service_account, tmp_path):
    found = in_cluster(POD, service_account)
    old = found.authority.tls
    assert not found.authority.changed(old)
    (tmp_path / "new").mkdir()
    (service_account / "ca.crt").write_bytes(Authority(tmp_path / "new").certificate.read_bytes())
    assert found.authority.changed(old)
    new = found.authority.tls
    assert len(new.get_ca_certs()) == 1
    assert new.get_ca_certs() != old.get_ca_certs()
    assert not found.authority.changed(new)
    # Another request that had met the old one: to it there is another one, too.
    assert found.authority.changed(old)
    assert found.authority.tls is new


def test_the_order_of_places(tmp_path, service_account):
    (tmp_path / ".kube").mkdir()
    write_kubeconfig(tmp_path / ".kube" / "config", {"server": "https://home"})
    environment = {"HOME": str(tmp_path)}

    def server(**more):
        return find_credentials(environment={**environment, **more}, service_account=service_account).server

    assert server() == "https://home"
    assert server(KUBERNETES_SERVICE_HOST="pod") == "https://pod:443"
    named = str(write_kubeconfig(tmp_path / "named", {"server": "https://named"}))
    assert server(KUBERNETES_SERVICE_HOST="pod", KUBECONFIG=named) == "https://named"
    assert server(KUBECONFIG=f"{tmp_path}/gone:{named}") == "https://named"
    assert server(KUBECONFIG=":") == "https://home"
    with pytest.raises(CredentialsError, match="gone: cannot read the kubeconfig"):
        server(KUBECONFIG=f"{tmp_path}/gone")
    with pytest.raises(CredentialsError, match="set KUBECONFIG, or run in a pod"):
        server(HOME=str(tmp_path / "nobody"))


def test_the_order_of_places_of_kubectl(tmp_path, service_account):
    def found(home, context=None, **more):
        environment = {"HOME": str(tmp_path / home), **more}
        made = find_credentials(None, context, environment, service_account, as_kubectl=True)
        return made.server, made.namespace

    (tmp_path / "home" / ".kube").mkdir(parents=True)
    here = {"name": "here", "context": {"cluster": "c", "user": "u", "namespace": "team"}}
    other = {"name": "prod", "context": {"cluster": "c", "namespace": "prod"}}
    home = {"server": "https://home"}
    write_kubeconfig(tmp_path / "home" / ".kube" / "config", home, contexts=[here, other])
    assert found("home", **POD) == ("https://home", "team")
    assert found("home", "prod", **POD) == ("https://home", "prod")
    assert found("nobody", **POD) == ("https://10.96.0.1:443", "rljob-system")
    named = str(write_kubeconfig(tmp_path / "named", {"server": "https://named"}))
    assert found("home", KUBECONFIG=named, **POD) == ("https://named", "team")
    # With $KUBECONFIG that of the home does not count, whether or not its files exist.
    gone = str(tmp_path / "gone")
    assert found("home", KUBECONFIG=gone, **POD) == ("https://10.96.0.1:443", "rljob-system")
    with pytest.raises(CredentialsError, match="gone: cannot read the kubeconfig"):
        found("home", KUBECONFIG=gone)


@pytest.mark.parametrize("as_kubectl", [False, True])
def test_a_context_is_none_of_a_service_account(tmp_path, service_account, as_kubectl):
    environment = {"HOME": str(tmp_path), **POD}
    with pytest.raises(CredentialsError, match="context 'prod' is given, and there is no kubeconfig"):
        find_credentials(None, "prod", environment, service_account, as_kubectl=as_kubectl)
    (tmp_path / ".kube").mkdir()
    context = {"name": "prod", "context": {"cluster": "c"}}
    write_kubeconfig(tmp_path / ".kube" / "config", {"server": "https://home"}, contexts=[context])
    found = find_credentials(None, "prod", environment, service_account, as_kubectl=as_kubectl)
    assert found.server == "https://home"


@pytest.fixture
def token(service_account):
    return service_account / "token"


@pytest.fixture
def now():
    return [0.0]


@pytest.fixture
def login(service_account, now):
    return in_cluster(POD, service_account, lambda: now[0]).authorization


async def test_a_rotated_token_is_used_within_a_minute(token, login, now):
    token.write_text("new\n")
    now[0] = 59.0
    assert await header(login) == "bearer pod-token"
    now[0] = 60.0
    assert await header(login) == "bearer new"


async def test_a_refused_token_is_read_again_at_once(token, login):
    for _ in range(3):
        old = await login.identity()
        assert await login.other(old) is None
    old = await login.identity()
    token.write_text("new")
    new = await login.other(old)
    assert new.header == "bearer new"
    token.write_text("newer")
    # Whoever had used the old one as well: the new one is not thrown away for that.
    assert await login.other(old) is new
    assert await login.identity() is new


async def test_a_token_that_is_away_for_a_moment(token, login, now):
    token.unlink()
    now[0] = 60.0
    for _ in range(2):
        with pytest.raises(CredentialsError, match="Service token file does not exist"):
            await login.identity()
    token.write_text("here")
    assert await header(login) == "bearer here"


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "Token file exists but empty"),
        (b" \n", "the token is empty"),
        (b"\xff", "token and ca.crt must be text"),
        (b"a\nb", "the token must be one line of ASCII characters"),
        ("\u00e9".encode(), "the token must be one line of ASCII characters"),
    ],
)
async def test_what_is_no_token_says_where(token, login, now, content, says):
    token.write_bytes(content)
    now[0] = 60.0
    with pytest.raises(CredentialsError, match=f"serviceaccount: {says}"):
        await login.identity()
