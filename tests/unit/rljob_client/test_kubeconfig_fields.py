"""What a kubeconfig may say, and the headers of impersonation."""

import pytest

from rljob_client.kubeconfig_fields import check_cluster, check_context, check_user, impersonation

CHECKS = {"cluster": check_cluster, "context": check_context, "user": check_user}
BASE = {"cluster": {"server": "https://api:6443"}, "context": {"cluster": "c"}, "user": {"as": "jane"}}
TEXT = "text: a number, yes or no stands in quotes"
URL = r"an http\(s\) URL"


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        ("cluster", {"insecure-skip-tls-verify": False, "tls-server-name": "api", "extensions": []}),
        ("cluster", {"server": "http://[::1]:8080/prefix/", "proxy-url": "http://me:hidden@proxy:3128"}),
        ("cluster", {"server": f"https://{'a' * 63}.example."}),
        ("cluster", {"certificate-authority-data": "QUFB\nQUFB\n", "unknown": 5}),
        ("context", {"user": "u", "namespace": "team", "extensions": 5}),
        ("user", {"token": "a b~", "username": "j\u00e9", "password": "a\nb"}),
        (
            "user",
            {"as": "j\u00e9", "as-uid": "7", "as-groups": ["a"], "as-user-extra": {"a/b c": ["v", "w"]}},
        ),
        ("user", {"auth-provider": {"name": "oidc", "config": None}}),
    ],
)
def test_what_is_right(kind, said):
    CHECKS[kind]({**BASE[kind], **said})


@pytest.mark.parametrize(
    ("kind", "key", "value", "allowed"),
    [
        *(("cluster", "insecure-skip-tls-verify", no, "true or false") for no in ("false", "off", 0, "0", 1)),
        *(("cluster", key, 5, TEXT) for key in ("server", "certificate-authority", "proxy-url")),
        ("cluster", "tls-server-name", "a\r\nb", "one line of text"),
        *(("cluster", "certificate-authority-data", no, "text of base64") for no in (5, "hidden", "\u00e9")),
        ("cluster", "extensions", {}, "a list"),
        *(
            ("cluster", "server", no, URL)
            for no in (
                "api:6443",
                "HTTPS://api",
                "ftp://me:hidden@api",
                "https://",
                "https://[::1",
                "https://me:hidden@api:99999",
                "https://me:hidden/x@api",
                "https://api:0",
                "https://a b",
                "https://a\nb",
                "https://\u00e9..x/",
                "https://a..b/",
                f"https://{'a' * 64}/",
            )
        ),
        ("cluster", "server", "https://me:hidden@api", "no user name and no password"),
        *(
            ("cluster", "proxy-url", no, f"{URL}.*SOCKS is not supported")
            for no in ("socks5://me:hidden@p", "http://", "http://me:hidden@p:x", "proxy:3128")
        ),
        *(("context", key, ["c"], TEXT) for key in ("cluster", "user")),
        ("context", "namespace", 5, "one line of text"),
        *(("user", key, 5, TEXT) for key in ("client-certificate", "client-key", "tokenFile", "username")),
        ("user", "password", 12345, TEXT),
        *(("user", "client-key-data", no, "text of base64") for no in ({"hidden": 1}, "hidden")),
        *(
            ("user", "token", no, "one line of ASCII")
            for no in ("hidden\nx", "hidden\u00e9", "hidden\x00", 5)
        ),
        *(("user", key, no, "one line of text") for key in ("as", "as-uid") for no in ("a\nb", 5)),
        *(("user", "as-groups", no, "a list of texts") for no in ("abc", [5], ["a\nb"], {"a": 1})),
        *(
            ("user", "as-user-extra", no, "a mapping of names to lists of texts")
            for no in ("a", ["a"], {"a": "abc"}, {"a": [5]}, {5: ["a"]}, {"a\nb": ["a"]}, {"a": ["b\nc"]})
        ),
        ("user", "auth-provider", "oidc", "a mapping"),
    ],
)
def test_what_is_refused_by_its_key(kind, key, value, allowed):
    with pytest.raises(ValueError, match=f"^{key} must (be|hold) .*{allowed}") as caught:
        CHECKS[kind]({**BASE[kind], key: value})
    assert "hidden" not in str(caught.value)


@pytest.mark.parametrize(
    ("user", "says"),
    [
        ({"auth-provider": {"name": "gcp"}}, "auth-provider 'gcp' is not supported; allowed: oidc, or the"),
        ({"auth-provider": {"config": {"token": "hidden"}}}, "auth-provider None is not supported"),
        ({"auth-provider": {"name": "oidc", "config": "hidden"}}, r"auth-provider\.config must be a mapping"),
        ({"as-groups": ["a"]}, "as is missing: as-groups goes with it"),
    ],
)
def test_what_goes_together(user, says):
    with pytest.raises(ValueError, match=f"^{says}") as caught:
        check_user(user)
    assert "hidden" not in str(caught.value)


def test_a_cluster_has_a_server():
    with pytest.raises(ValueError, match=f"^server must be {URL}"):
        check_cluster({})


def test_names_of_headers_are_written_as_kubectl_writes_them():
    user = {"as": "jane", "as-user-extra": {"example.org/c": ["v"], "a b%": ["w"], "x~!|": []}}
    assert impersonation(user) == (
        ("Impersonate-User", "jane"),
        ("Impersonate-Extra-example.org%2Fc", "v"),
        ("Impersonate-Extra-a%20b%25", "w"),
    )
