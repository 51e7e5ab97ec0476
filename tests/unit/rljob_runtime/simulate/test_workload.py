"""Drawn lengths have the distribution that they are asked for."""

import dataclasses
from typing import Any

import numpy as np
import pytest

from rljob_runtime.simulate.workload import LengthModel, ToolWaits, Workload, fit_mu

MODEL = LengthModel(mean=7000, cap=32768, between=0.6, within=0.3, prompt_tokens=74)


@pytest.mark.parametrize(("mean", "deviation"), [(7000, 0.6), (7000, 1.5), (100, 0.0), (30000, 0.8)])
def test_mu_gives_the_mean_under_the_cap(mean: float, deviation: float) -> None:
    normal = np.random.default_rng(0).standard_normal(400_000)
    lengths = np.minimum(np.exp(fit_mu(mean, deviation, 32768) + deviation * normal), 32768)
    assert lengths.mean() == pytest.approx(mean, rel=0.01)


def test_lengths_have_the_mean_and_the_correlation() -> None:
    lengths = MODEL.draw(4096, 8, seed=1).lengths
    assert lengths.mean() == pytest.approx(7000, rel=0.03)
    assert lengths.max() == 32768
    # Without the cap, which bends the logarithms.
    logs = np.log(dataclasses.replace(MODEL, mean=500.0).draw(4096, 8, seed=1).lengths)
    within = logs.std(axis=1, ddof=1).mean()
    assert within == pytest.approx(0.3, rel=0.06)
    assert np.corrcoef(logs[:, 0], logs[:, 1])[0, 1] == pytest.approx(0.36 / 0.45, abs=0.03)


def test_a_mean_as_long_as_the_cap_makes_every_response_so_long() -> None:
    assert (dataclasses.replace(MODEL, mean=50.0, cap=50).draw(20, 4, seed=0).lengths == 50).all()
    assert (dataclasses.replace(MODEL, mean=1.0, cap=1).draw(20, 4, seed=0).lengths == 1).all()


def test_neighbours_resemble_each_other_where_the_order_says_so() -> None:
    model = dataclasses.replace(MODEL, mean=500.0, order=0.8, within=0.0)
    logs = np.log(model.draw(8192, 1, seed=2).lengths[:, 0])
    assert np.corrcoef(logs[:-1], logs[1:])[0, 1] == pytest.approx(0.8, abs=0.03)
    assert logs.std() == pytest.approx(0.6, rel=0.05)


def test_a_data_set_that_is_repeated_brings_equal_prompts_again() -> None:
    work = dataclasses.replace(MODEL, rows=10, within=0.0).draw(25, 2, seed=3)
    assert work.rows.tolist() == [*range(10), *range(10), *range(5)]
    assert np.array_equal(work.lengths[:10], work.lengths[10:20])


def test_equal_seeds_give_equal_workloads() -> None:
    first, again, other = (MODEL.draw(8, 4, seed).lengths for seed in (1, 1, 2))
    assert np.array_equal(first, again)
    assert not np.array_equal(first, other)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"mean": 40000.0}, r"mean must be at least 1 and at most cap, 32768 tokens \(found 40000\)"),
        ({"mean": 0.5}, r"mean must be at least 1"),
        ({"between": -0.1}, r"between must be at least 0 \(found -0.1\)"),
        ({"within": -1.0}, r"within must be at least 0"),
        ({"order": 1.0}, r"order must be from 0 to below 1 \(found 1\)"),
        ({"prompt_tokens": 0}, r"prompt_tokens must be at least 1"),
    ],
)
def test_impossible_distributions_are_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        dataclasses.replace(MODEL, **change)


def test_impossible_workloads_are_refused() -> None:
    ones = np.ones(2, dtype=np.int64)
    with pytest.raises(ValueError, match="lengths must be at least 1 token"):
        Workload(np.array([[1], [0]]), ones, ones)
    with pytest.raises(ValueError, match=r"lengths must be \[groups, samples\]"):
        Workload(ones, ones, ones)
    with pytest.raises(ValueError, match="rows must have one value for each group"):
        Workload(np.array([[1], [1]]), ones, ones[:1])


def test_the_longest_request_is_prompt_and_response() -> None:
    work = Workload(np.array([[5, 9], [3, 3]]), np.array([1, 8]), np.arange(2), ToolWaits(2, 1.0))
    assert work.longest == 11
