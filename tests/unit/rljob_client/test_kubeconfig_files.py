"""Kubeconfigs as files."""

import pytest
import yaml

from rljob_client.identity import CredentialsError
from rljob_client.kubeconfig_files import KubeconfigFiles, keep_tokens
from tests.support.operator.kubeconfig import write_kubeconfig

OIDC = {"auth-provider": {"name": "oidc", "config": {"client-id": "me", "id-token": "old", "x": ""}}}


@pytest.mark.parametrize("folder", ["a:b", "with space", "\u00e9"])
def test_any_path_is_that_of_one_file(tmp_path, folder):
    (tmp_path / folder).mkdir()
    found = KubeconfigFiles([write_kubeconfig(tmp_path / folder / "config")])
    assert found.part("cluster", "c").folder == tmp_path / folder


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"current-context": 5}, "current-context must be text"),
        ({"clusters": "c"}, "clusters must be a list"),
        ({"clusters": [{"name": 5, "cluster": {}}]}, "an entry of clusters has no name that is text"),
        ({"users": [{"name": "u"}, {"name": "u"}]}, "there are two users named 'u'"),
        ({"users": [{"name": "u", "user": "hidden"}]}, "user 'u' must be a mapping"),
    ],
)
def test_what_is_no_kubeconfig_says_where(tmp_path, wrong, says):
    path = write_kubeconfig(tmp_path / "config", **wrong)
    with pytest.raises(CredentialsError, match=f"^{path}: {says}$"):
        KubeconfigFiles([path])


@pytest.mark.parametrize("content", [b"\xff\xfe\x00", b"\0", b"a: &a [*a", b"[" * 10_000], ids=range(4))
def test_what_is_no_yaml(tmp_path, content):
    (tmp_path / "config").write_bytes(content)
    with pytest.raises(CredentialsError, match=r"config: not valid YAML$"):
        KubeconfigFiles([tmp_path / "config"])


def test_nothing_but_tokens_is_written(tmp_path):
    path = write_kubeconfig(tmp_path / "config", user=OIDC)
    path.chmod(0o600)
    user = KubeconfigFiles([path]).part("user", "u")
    # By somebody else, since it was read.
    others = {**yaml.safe_load(path.read_text()), "current-context": "another"}
    path.write_text(yaml.safe_dump(others))
    keep_tokens(user, {"id-token": "new", "refresh-token": "r"})
    others["users"][0]["user"]["auth-provider"]["config"] |= {"id-token": "new", "refresh-token": "r"}
    assert yaml.safe_load(path.read_text()) == others
    assert path.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize(
    "users", [None, [], [{"name": "u", "user": {"token": "t"}}], [{"name": "u"}]], ids=str
)
def test_a_user_whom_somebody_took_out_stays_out(tmp_path, users):
    path = write_kubeconfig(tmp_path / "config", user=OIDC)
    user = KubeconfigFiles([path]).part("user", "u")
    write_kubeconfig(path, users=users)
    keep_tokens(user, {"id-token": "new"})
    assert yaml.safe_load(path.read_text())["users"] == users


def test_a_file_that_may_not_be_written_says_so(tmp_path):
    path = write_kubeconfig(tmp_path / "config", user=OIDC)
    user = KubeconfigFiles([path]).part("user", "u")
    path.unlink()
    with pytest.raises(CredentialsError, match="cannot read the kubeconfig: No such file"):
        keep_tokens(user, {"id-token": "new"})
