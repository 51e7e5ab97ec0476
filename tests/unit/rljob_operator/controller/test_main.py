"""The operator's command, as far as it goes without an API server."""

import gc
import logging

import pytest

from rljob_operator.controller.main import _parser, main


@pytest.fixture
def collector():
    """Python's garbage collector, with its own thresholds again in the end."""
    before = gc.get_threshold()
    gc.set_threshold(700, 10, 10)
    yield
    gc.set_threshold(*before)


def test_without_a_kubeconfig_it_says_so(collector, tmp_path, capsys):
    assert main([f"--kubeconfig={tmp_path / 'none'}"]) == 2
    assert "rljob-operator: " in capsys.readouterr().err


def test_what_stays_is_not_looked_at_time_and_again(collector, tmp_path):
    main([f"--kubeconfig={tmp_path / 'none'}"])
    gc.collect()
    before = collections()
    kept: list[list[int]] = [[] for _ in range(9000)]
    assert collections() - before <= 1
    assert len(kept) == 9000


@pytest.mark.parametrize(
    ("given", "arguments", "name"),
    [
        (None, [], "rljob-operator"),
        ("team-a-rljob-operator", [], "team-a-rljob-operator"),
        ("team-a-rljob-operator", ["--lease-name=mine"], "mine"),
    ],
)
def test_the_name_of_the_lease(monkeypatch, given, arguments, name):
    if given is None:
        monkeypatch.delenv("RLJOB_LEASE_NAME", raising=False)
    else:
        monkeypatch.setenv("RLJOB_LEASE_NAME", given)
    assert _parser().parse_args(arguments).lease_name == name


def test_what_others_log_has_no_password_of_a_url(collector, tmp_path, capsys, monkeypatch):
    """kopf logs whole URLs, asyncio whole errors."""
    monkeypatch.setattr(logging, "root", root := logging.RootLogger(logging.WARNING))
    main([f"--kubeconfig={tmp_path / 'none'}"])
    try:
        raise ValueError("http://me:Passw0rd@proxy: broke")
    except ValueError:
        root.exception("GET %s/api", "https://me:Passw0rd@api:6443")
    logged = capsys.readouterr().err
    assert "ERROR root GET https://***@api:6443/api\nTraceback" in logged
    assert "ValueError: http://***@proxy: broke" in logged
    assert "Passw0rd" not in logged


def collections() -> int:
    """Times that the collector has run."""
    return sum(each["collections"] for each in gc.get_stats())
