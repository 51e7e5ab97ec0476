"""Which engines count as slower than the others of their pool."""

from collections.abc import Mapping, Sequence

import pytest

from rljob_runtime.routing.slowness import Slowness


def known(ratios: Mapping[int, Sequence[float]]) -> dict[int, float]:
    slowness = Slowness()
    for engine, found in ratios.items():
        for ratio in found:
            slowness.add(engine, ratio)
    slowness.compare(ratios)
    return {engine: slowness.of(engine) for engine in ratios}


@pytest.mark.parametrize(
    ("ratios", "factors"),
    [
        ((1.0, 1.0), (1.0, 1.0)),
        ((0.75, 1.35), (1.0, 1.8)),
        ((1.0, 1.25), (1.0, 1.0)),
        ((1.0, 1.35), (1.0, 1.35)),
        ((1.0, 1.1, 0.9, 2.0), (1.0, 1.0, 1.0, 2.0)),
        ((1.0, 1.0, 0.5), (1.0, 1.0, 0.5)),
        ((1.7, 1.7, 1.7), (1.0, 1.0, 1.0)),
        ((1.7,), (1.0,)),
    ],
    ids=[
        "alike", "of two the quicker one is the ordinary one", "chance", "slower", "one of four",
        "a quick one", "what all have in common is none's own", "one alone",
    ],
)  # fmt: skip
def test_an_engine_is_compared_with_the_others(ratios: Sequence[float], factors: Sequence[float]) -> None:
    found = known({engine: [ratio] * 20 for engine, ratio in enumerate(ratios)})
    assert [found[engine] for engine in range(len(ratios))] == pytest.approx(factors, rel=0.12)
    assert [found[engine] == 1.0 for engine in range(len(ratios))] == [each == 1.0 for each in factors]


@pytest.mark.parametrize(("measured", "factor"), [(9, 1.0), (10, 2.0)])
def test_nothing_is_said_of_an_engine_that_was_hardly_seen(measured: int, factor: float) -> None:
    assert known({1: [1.0] * 20, 2: [2.0] * measured})[2] == pytest.approx(factor)


def test_an_engine_that_differs_does_so_until_it_hardly_does() -> None:
    """From 1.3 times on, and then down to 1.2."""
    slowness, found = Slowness(), []
    for ratio in (1.25, 1.4, 1.25, 1.0):
        for _ in range(200):
            slowness.add(1, 1.0)
            slowness.add(2, ratio)
        slowness.compare([1, 2])
        found.append(slowness.of(2))
    assert found == [1.0, pytest.approx(1.4, rel=0.01), pytest.approx(1.25, rel=0.01), 1.0]


def test_engines_that_are_gone_are_forgotten() -> None:
    slowness = Slowness()
    for engine, ratio in ((1, 1.0), (2, 1.0), (3, 3.0), (4, 3.0), (5, 3.0)):
        for _ in range(20):
            slowness.add(engine, ratio)
    slowness.compare([1, 2, 3, 4, 5])
    assert (slowness.of(1), slowness.of(3)) == (pytest.approx(1 / 3), 1.0)
    slowness.compare([1, 2, 3])
    assert (slowness.of(1), slowness.of(3), slowness.of(4)) == (1.0, pytest.approx(3.0), 1.0)
