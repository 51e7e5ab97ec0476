"""Which engines are set aside for an evaluation, and which take their place when they are lost."""

import pytest

from rljob_runtime.evaluation.engines import (
    ServingEngine,
    engines_in_their_place,
    engines_to_set_aside,
)

THREE = [(0, 7, 5), (1, 7, 2), (2, 7, 9)]


@pytest.mark.parametrize(
    ("engines", "wanted", "expected"),
    [
        pytest.param(THREE, 1, (1,), id="the one that runs the least"),
        pytest.param(THREE, 2, (1, 0), id="two of three"),
        pytest.param(THREE, 3, (1, 0), id="one is left for training"),
        pytest.param(THREE, 9, (1, 0), id="fewer than are wanted"),
        pytest.param(THREE[:1], 1, (), id="the only one trains"),
        pytest.param([], 1, (), id="nobody is there"),
        pytest.param([(0, 6, 0), (1, 7, 2), (2, 7, 1)], 2, (2, 1), id="those that hold the version"),
        pytest.param([(0, 6, 0), (1, 6, 0), (2, 7, 1)], 2, (2,), id="others do not hold it"),
        pytest.param([(0, 6, 0), (1, 8, 0)], 1, (), id="nobody holds it"),
        pytest.param([(4, 7, 0), (3, 7, 0)], 1, (3,), id="of equals the first"),
    ],
)
def test_where_an_evaluation_begins(
    engines: list[tuple[int, int, int]], wanted: int, expected: tuple[int, ...]
) -> None:
    assert engines_to_set_aside([ServingEngine(*each) for each in engines], wanted, 7) == expected


@pytest.mark.parametrize(
    ("engines", "wanted", "expected"),
    [
        pytest.param(THREE, 1, (1,), id="the one that runs the least"),
        pytest.param(THREE, 3, (1, 0), id="one is left for training"),
        pytest.param(THREE[:1], 1, (0,), id="the only one, and training waits"),
        pytest.param([], 1, (), id="nobody is there"),
        pytest.param(
            [(0, 9, 0), (1, 7, 2), (2, 9, 0)], 2, (1,), id="those that hold the version, however few"
        ),
        pytest.param([(0, 10, 0), (1, 9, 5), (2, 9, 4)], 1, (2,), id="else the nearest version"),
        pytest.param([(0, 10, 0), (1, 6, 5)], 1, (1,), id="also an older one"),
    ],
)
def test_where_one_goes_on(
    engines: list[tuple[int, int, int]], wanted: int, expected: tuple[int, ...]
) -> None:
    assert engines_in_their_place([ServingEngine(*each) for each in engines], wanted, 7) == expected
