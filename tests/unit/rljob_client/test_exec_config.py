"""What a kubeconfig may say of its credential command."""

import pytest

from rljob_client.exec_config import read_config

LEAST = {"apiVersion": "v", "command": "login"}


def test_a_command_with_all_that_it_may_have():
    found = read_config(
        {
            **LEAST,
            "args": ["--as", "me"],
            "env": [{"name": "REGION", "value": "a"}, {"name": "EMPTY"}],
            "interactiveMode": "Never",
            "provideClusterInfo": True,
            "installHint": "install it",
        }
    )
    assert (found.words, found.program) == (("login", "--as", "me"), "login")
    assert found.environment == {"REGION": "a", "EMPTY": ""}
    assert (found.interactive, found.tells_cluster, found.hint) == (False, True, "install it")


@pytest.mark.parametrize("value", [None, []])
def test_a_command_with_the_least(value):
    found = read_config({**LEAST, "args": value, "env": value, "installHint": None})
    assert (found.words, found.environment, found.hint) == (("login",), {}, "")
    assert found.interactive and not found.tells_cluster


@pytest.mark.parametrize(
    ("config", "says"),
    [
        (None, r"exec must be a mapping with apiVersion and command"),
        (["login"], r"exec must be a mapping"),
        ({"apiVersion": "v"}, r"exec\.command is missing"),
        ({"command": "login"}, r"exec\.apiVersion is missing"),
        ({**LEAST, "command": ""}, r"exec\.command must not be empty"),
        ({**LEAST, "command": 5}, r"exec\.command must be text: a number, yes or no stands in quotes"),
        ({**LEAST, "args": "--secret"}, r"exec\.args must be a list"),
        ({**LEAST, "args": ["a", 5]}, r"exec\.args\[1\] must be text"),
        ({**LEAST, "args": ["secret\0"]}, r"exec\.args\[0\] must be text without NUL"),
        ({**LEAST, "args": ["secret\ud800"]}, r"exec\.args\[0\] must be text without .* surrogate"),
        (
            {**LEAST, "provideClusterInfo": "false"},
            r"exec\.provideClusterInfo must be true or false, without",
        ),
        (
            {**LEAST, "interactiveMode": "never"},
            r"exec\.interactiveMode must be Never, IfAvailable or Always",
        ),
        ({**LEAST, "interactiveMode": ["secret"]}, r"exec\.interactiveMode must be Never, IfAvailable or"),
        ({**LEAST, "installHint": 5}, r"exec\.installHint must be text"),
        ({**LEAST, "env": {"A": "secret"}}, r"exec\.env must be a list"),
        ({**LEAST, "env": ["A=secret"]}, r"exec\.env\[0\] must be a mapping with name and value"),
        ({**LEAST, "env": [{"value": "secret"}]}, r"exec\.env\[0\]\.name is missing"),
        ({**LEAST, "env": [{"name": "A", "value": True}]}, r"exec\.env\[0\]\.value must be text"),
        ({**LEAST, "env": [{"name": "A=", "value": "secret"}]}, r'exec\.env\[0\]\.name .* nor hold "="'),
        ({**LEAST, "env": [{"name": "", "value": "secret"}]}, r"exec\.env\[0\]\.name must not be empty"),
        (
            {**LEAST, "env": [{"name": "A", "value": "secret\0"}]},
            r"exec\.env\[0\]\.value must be text without",
        ),
    ],
)
def test_what_is_wrong_is_named_and_no_secret_with_it(config, says):
    with pytest.raises(ValueError, match=f"^{says}") as caught:
        read_config(config)
    assert "secret" not in str(caught.value)
