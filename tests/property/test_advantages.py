"""What holds of every advantage, whatever the rewards of a step."""

from dataclasses import replace

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from rljob_api.algorithm import Advantage, Algorithm, MaxRl, ReinforcePlusPlus, Rloo
from rljob_runtime.objective.advantages import GroupRewards, estimator
from rljob_runtime.rewards.outcome import LARGEST
from tests.support.depth import examples

ALGORITHMS = st.sampled_from(
    [
        Algorithm(),
        Algorithm(normalize_by_std=False),
        Algorithm(advantage=Advantage(rloo=Rloo())),
        Algorithm(advantage=Advantage(max_rl=MaxRl())),
        Algorithm(advantage=Advantage(reinforce_plus_plus=ReinforcePlusPlus())),
        Algorithm(advantage=Advantage(reinforce_plus_plus=ReinforcePlusPlus(baseline=True))),
    ]
)
RESPONSES = st.tuples(
    st.sampled_from([0.0, 1.0]) | st.floats(0, LARGEST), st.booleans(), st.integers(0, 32_768)
)


def group(uid: int, responses: list[tuple[float, bool, int]]) -> GroupRewards:
    rewards, counted, tokens = map(np.array, zip(*responses, strict=True))
    return GroupRewards(uid, uid, rewards, counted, np.where(counted, tokens, 0))


@settings(deadline=None, max_examples=examples(150))
@given(
    algorithm=ALGORITHMS,
    steps=st.lists(st.lists(RESPONSES, min_size=2, max_size=6), min_size=1, max_size=5),
    junk=st.sampled_from([0.0, -5.0, float("nan"), float("inf")]),
)
def test_whatever_the_rewards(
    algorithm: Algorithm, steps: list[list[tuple[float, bool, int]]], junk: float
) -> None:
    groups = [group(uid, responses) for uid, responses in enumerate(steps)]
    estimate = estimator(algorithm)
    found = estimate(groups)
    for each, advantages in zip(groups, found, strict=True):
        assert advantages.shape == each.rewards.shape and np.isfinite(advantages).all()
        assert not advantages[~each.counted].any()
    # What stands where there is no reward is not looked at.
    with np.errstate(all="ignore"):
        marked = [replace(each, rewards=np.where(each.counted, each.rewards, junk)) for each in groups]
        for one, other in zip(estimate(marked), found, strict=True):
            assert np.array_equal(one, other)
    if not estimate.across_groups:
        for each, advantages in zip(groups, found, strict=True):
            assert np.array_equal(estimate([each])[0], advantages)
    else:
        trained = np.concatenate([each.tokens for each in groups])
        mean = (trained * np.concatenate(found).astype(np.float64)).sum() / max(1, trained.sum())
        largest = max(1.0, *(float(np.abs(each).max()) for each in found))
        assert abs(mean) < 1e-3 * largest, "over trained tokens, the mean of what is whitened is 0"
