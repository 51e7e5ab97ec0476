"""How far earlier epochs tell which groups have long responses, and what they count then."""

from collections.abc import Callable

import pytest

from rljob_runtime.routing.history import HistoryTrust, weight

BETWEEN = 1.0
"""Variance between groups of which half were expected a deviation above the mean, and half as far below."""
EXPECTED = [1.0, -1.0, -1.0, 1.0] * 25


def trust(found: Callable[[float], float], groups: int = 100) -> HistoryTrust:
    made = HistoryTrust()
    for expected in EXPECTED[:groups]:
        made.push(expected, found(expected))
    return made


@pytest.mark.parametrize(
    ("found", "share"),
    [
        pytest.param(lambda expected: expected, 1.0, id="as expected"),
        pytest.param(lambda expected: expected - 0.7, 1.0, id="all half as long"),
        pytest.param(lambda expected: 2 * expected, 1.0, id="further apart than expected"),
        pytest.param(lambda expected: 0.6 * expected, 1.0, id="nearer to each other"),
        pytest.param(lambda expected: 0.2 * expected, 0.54, id="much nearer to each other"),
        pytest.param(lambda expected: 0.0, 0.17, id="all alike"),
        pytest.param(lambda expected: -expected, 0.0, id="the contrary"),
    ],
)
def test_share(found: Callable[[float], float], share: float) -> None:
    assert trust(found).share(BETWEEN) == pytest.approx(share, abs=0.01)


@pytest.mark.parametrize(
    ("groups", "share"), [(0, 1.0), (1, 1.0), (2, 0.67), (3, 0.43), (4, 0.03), (100, 0.0)], ids=str
)
def test_a_few_groups_that_tell_the_contrary_are_enough(groups: int, share: float) -> None:
    assert trust(lambda expected: -expected, groups).share(BETWEEN) == pytest.approx(share, abs=0.02)


def test_groups_that_were_all_expected_alike_tell_nothing() -> None:
    made = HistoryTrust()
    for found in (-2.0, -1.0, -3.0):
        made.push(1.0, found)
    assert made.share(BETWEEN) == 1.0


def test_trust_comes_back() -> None:
    made = trust(lambda expected: -expected)
    for expected in 4 * EXPECTED:
        made.push(expected, expected)
    assert made.share(BETWEEN) == 1.0


@pytest.mark.parametrize("share", [0.0, 0.25, 1.0])
@pytest.mark.parametrize(("prior", "believed"), [(1.0, 4.0), (25.0, 1.0), (2.0, 800.0)])
def test_weight_has_a_group_so_far_from_the_mean(prior: float, believed: float, share: float) -> None:
    found = weight(prior, believed, share)
    assert found / (prior + found) == pytest.approx(share * believed / (prior + believed))
    assert share < 1 or found == pytest.approx(believed)
