"""The task of the benchmark of drafts in texts of a trained model."""

import numpy as np
import pytest

from tests.bench import worked_sums
from tests.bench.speculation_trained import half_way


@pytest.mark.parametrize(
    ("response", "wanted"),
    [
        ("Aa0+7=7Bb2+7=9#9", 1.0),
        ("Aa0+7=7wA9-9=1Bb2+7=9wB2+7=9#9", 1.0),  # whatever a check says
        ("Aa0+7=8Bb8+2=0#0", 2 / 3),  # the second step goes on from what the first one found
        ("Aa0+7=7Ba9+2=1#1", 2 / 3),
        ("Ba0+7=7Ab7+2=9#9", 1 / 3),
        ("Aa0+7=7Bb7+2=9#8", 2 / 3),
        ("Aa0+7=7Bb7+2=9", 2 / 3),
        ("Aa0+7=7#7", 1 / 3),
        ("Aa0+7=7Bb7+2=9Cb9+2=1#1", 2 / 4),
        ("", 0.0),
    ],
)
def test_a_response_is_worth_the_share_of_its_right_steps(response: str, wanted: float) -> None:
    assert worked_sums.score("A7B2", response) == pytest.approx(wanted)


def test_examples_are_right_but_for_wrong_results(monkeypatch: pytest.MonkeyPatch) -> None:
    random = np.random.default_rng(0)
    asked = [worked_sums.prompt(random) for _ in range(200)]
    assert min(worked_sums.score(one, worked_sums.example(one, random)) for one in asked) < 0.9
    monkeypatch.setattr(worked_sums, "_WRONG", 0.0)
    for one in asked:
        tokens = np.array(worked_sums.tokens(worked_sums.example(one, random)))
        assert worked_sums.score(one, worked_sums.text(tokens)) == 1.0


def test_the_state_half_way_is_nearest_to_the_middle() -> None:
    rewards = [0.1] * 12 + [0.5] * 6 + [0.9] * 12
    assert rewards[half_way(rewards)] == 0.5
