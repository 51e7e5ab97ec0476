"""The cost model's constants from measured passes."""

import random

import numpy as np
import pytest

from rljob_runtime.parallel.cost_model import CostModel, CostTable, ModelShape
from rljob_runtime.parallel.pass_fit import MeasuredPass, OnlineFit, fit_passes, scales_of

PRIOR = CostModel.prior(ModelShape(36, 7_570_000_000, 4096, 1024), 8)
TRUTH = CostModel(
    per_pass=0.02, per_token=3e-5, per_square=4e-9,
    shared_pass=(0.0, 0.001, 0.002, 0.004), shared_token=(0.0, 1e-6, 2e-6, 8e-6),
)  # fmt: skip


def measured(
    truth: CostModel,
    count: int,
    degrees: tuple[int, ...] = (1, 2, 4, 8),
    noise: float = 0.0,
    longest: int = 65536,
) -> list[MeasuredPass]:
    """Passes as a device with these constants would run them."""
    draw = random.Random(count)
    passes = []
    for _ in range(count):
        degree = draw.choice(degrees)
        lengths = tuple(int(64 * (longest / 64) ** draw.random()) for _ in range(draw.choice((1, 1, 4, 16))))
        seconds = truth.seconds(lengths, degree) * (1 + noise * draw.gauss(0, 1))
        passes.append(MeasuredPass(degree, lengths, seconds))
    return passes


def test_the_constants_that_made_the_passes_are_found_again() -> None:
    fit = fit_passes(measured(TRUTH, 400), PRIOR, 8)
    assert fit.model.per_pass == pytest.approx(TRUTH.per_pass, rel=0.02)
    assert fit.model.per_token == pytest.approx(TRUTH.per_token, rel=0.02)
    assert fit.model.per_square == pytest.approx(TRUTH.per_square, rel=0.02)
    assert fit.r_squared > 0.9999
    for degree in (1, 2, 4, 8):
        assert fit.model.seconds([9000, 300], degree) == pytest.approx(
            TRUTH.seconds([9000, 300], degree), rel=0.01
        )


def test_noise_lowers_what_is_explained_and_moves_predictions_little() -> None:
    fit = fit_passes(measured(TRUTH, 400, noise=0.1), PRIOR, 8)
    assert 0.9 < fit.r_squared < 0.999
    assert fit.model.seconds([16384], 2) == pytest.approx(TRUTH.seconds([16384], 2), rel=0.05)


def test_passes_that_were_held_up_do_not_decide() -> None:
    passes = measured(TRUTH, 300)
    held_up = [MeasuredPass(each.degree, each.lengths, 20 * each.seconds) for each in passes[:6]]
    fit = fit_passes([*held_up, *passes[6:]], PRIOR, 8)
    assert fit.model.seconds([16384], 1) == pytest.approx(TRUTH.seconds([16384], 1), rel=0.05)


def test_the_prior_decides_where_nothing_was_measured() -> None:
    """A machine a thousand times slower than the prior's, on which no pass was shared yet."""
    slow = CostModel(*(1000 * each for each in (PRIOR.per_pass, PRIOR.per_token, PRIOR.per_square)))
    fit = fit_passes(measured(slow, 50, degrees=(1,), longest=2048), PRIOR, 8)
    assert fit.model.seconds([65536], 1) == pytest.approx(slow.seconds([65536], 1), rel=0.05)
    for degree in (2, 8):
        expected = 1000 * PRIOR.seconds([65536], degree)
        assert fit.model.seconds([65536], degree) == pytest.approx(expected, rel=0.05)


@pytest.mark.parametrize("shared", [150, 250], ids=["fewer shared", "more shared"])
def test_a_device_that_is_slower_in_one_degree_than_in_another(shared: int) -> None:
    """A tiny model on CPUs: by the prior, sharing costs a thousand times what the samples do, and in truth as
    much as they do. Whichever passes are more, what is guessed of the others does not decide."""
    prior = CostModel.prior(ModelShape(2, 40_000, 64, 32), 2)
    truth = CostModel(per_pass=0.005, per_token=4e-5, per_square=0.0, shared_pass=(0.0, 0.01))
    passes = [
        *measured(truth, 400 - shared, degrees=(1,), noise=0.2, longest=128),
        *measured(truth, shared, degrees=(2,), noise=0.2, longest=256),
    ]
    fit = fit_passes(passes, prior, 2)
    assert fit.r_squared > 0.5
    for degree in (1, 2):
        assert fit.model.seconds([100], degree) == pytest.approx(truth.seconds([100], degree), rel=0.25)
    # By what is minimised, a plan without any model would be worse off: one number for all passes.
    seconds = np.array([each.seconds for each in passes])
    predicted = np.array([fit.model.seconds(each.lengths, each.degree) for each in passes])
    one = (1 / seconds).sum() / (1 / seconds**2).sum()
    assert ((predicted / seconds - 1) ** 2).sum() < ((one / seconds - 1) ** 2).sum()


@pytest.mark.parametrize(
    ("counts", "scales"),
    [
        # As slow as the samples' passes show, where too few were shared.
        ({1: 50, 2: 7}, [1000.0, 1000.0, 1000.0]),
        ({1: 50, 2: 8}, [1000.0, 10.0, 10.0]),
        ({4: 8}, [100.0, 100.0, 100.0]),
        # The nearest: of two that are as near the lower degree.
        ({1: 8, 4: 8}, [1000.0, 1000.0, 100.0]),
        # All passes' median where no degree has enough.
        ({1: 3, 2: 5, 4: 3}, [100.0, 100.0, 100.0]),
    ],
)
def test_each_degree_has_the_scale_of_its_own_passes(counts: dict[int, int], scales: list[float]) -> None:
    """Degree 1 is 1000 times slower than the prior, degree 2 ten times, degree 4 a hundred times."""
    slower = {1: 1000.0, 2: 10.0, 4: 100.0}
    passes = [
        MeasuredPass(degree, (4096,), slower[degree] * PRIOR.seconds([4096], degree))
        for degree, count in counts.items()
        for _ in range(count)
    ]
    ratios = np.array([slower[each.degree] for each in passes])
    assert scales_of(passes, ratios, 3) == scales


def test_one_pass_is_enough_to_set_the_scale() -> None:
    fit = fit_passes([MeasuredPass(1, (1000,), 5.0)], PRIOR, 4)
    assert fit.model.seconds([1000], 1) == pytest.approx(5.0, rel=0.01)


def test_a_single_pass_of_another_length_counts_more_than_the_prior() -> None:
    """It took three times what the prior says, and the others took just that."""
    long, short = (PRIOR.seconds([length]) for length in (65536, 1000))
    passes = [MeasuredPass(1, (65536,), 3 * long), *[MeasuredPass(1, (1000,), short)] * 2]
    model = fit_passes(passes, PRIOR, 1).model
    assert 2 * long < model.seconds([65536]) < 3 * long
    assert model.seconds([1000]) == pytest.approx(short, rel=0.05)


def test_no_constant_is_negative() -> None:
    # Long passes that took less time than short ones.
    passes = [MeasuredPass(1, (n,), 1.0 / n) for n in (100, 200, 400, 800)]
    model = fit_passes(passes, PRIOR, 2).model
    assert (
        min(model.per_pass, model.per_token, model.per_square, *model.shared_pass, *model.shared_token) >= 0
    )


def test_nothing_measured_is_refused() -> None:
    with pytest.raises(ValueError, match="no measured pass"):
        fit_passes([], PRIOR, 2)


def test_a_table_corrects_the_formula_where_passes_of_one_length_were_measured() -> None:
    """Attention that is twice as slow from 32,768 tokens on, which no formula of this form can follow."""
    bent = CostModel(
        TRUTH.per_pass, TRUTH.per_token, TRUTH.per_square,
        table=CostTable({1: ((16384.0, 1.0), (32768.0, 2.0))}),
    )  # fmt: skip
    passes = [
        MeasuredPass(1, (length,), bent.seconds([length]))
        for length in (1024, 4096, 16384, 32768)
        for _ in range(20)
    ]
    fit = fit_passes(passes, PRIOR, 2)
    assert set(fit.model.table.entries) == {1}
    for length in (4096, 16384, 32768):
        assert fit.model.seconds([length]) == pytest.approx(bent.seconds([length]), rel=0.01)
    assert fit.r_squared > 0.999
    few = fit_passes(passes[::10], PRIOR, 2)
    assert few.model.table == CostTable()
    assert few.r_squared < fit.r_squared


@pytest.mark.parametrize(
    ("entries", "factors"),
    [
        ({}, [1.0, 1.0, 1.0, 1.0]),
        ({2: ((10.0, 3.0),)}, [1.0, 1.0, 1.0, 1.0]),
        ({1: ((10.0, 3.0),)}, [3.0, 3.0, 3.0, 3.0]),
        ({1: ((10.0, 1.0), (20.0, 2.0))}, [1.0, 1.0, 1.5, 2.0]),
        ({1: ((10.0, 1.0), (15.0, 4.0), (20.0, 2.0))}, [1.0, 1.0, 4.0, 2.0]),
    ],
)
def test_factors_between_the_lengths_of_a_table(
    entries: dict[int, tuple[tuple[float, float], ...]], factors: list[float]
) -> None:
    assert CostTable(entries).factors(np.array([5, 10, 15, 40]), 1).tolist() == factors


def test_the_model_follows_what_is_measured_last() -> None:
    fit = OnlineFit(PRIOR, 8, window=64, every=16)
    assert (fit.model, fit.r_squared) == (PRIOR, None)
    fit.add(measured(TRUTH, 15))
    assert fit.r_squared is None
    fit.add([MeasuredPass(1, (), 1.0), MeasuredPass(1, (5,), 0.0), MeasuredPass(1, (5,), float("inf"))])
    assert fit.r_squared is None
    fit.add(measured(TRUTH, 1))
    assert fit.r_squared is not None
    twice = CostModel(*(2 * each for each in (TRUTH.per_pass, TRUTH.per_token, TRUTH.per_square)))
    fit.add(measured(twice, 64, degrees=(1,)))
    assert fit.model.seconds([8192]) == pytest.approx(2 * TRUTH.seconds([8192]), rel=0.02)


def test_a_fit_does_not_depend_on_the_last_digits() -> None:
    """Processors of other makes add up in another order; ranks must come to the same model all the same."""
    passes = measured(TRUTH, 200, noise=0.05)
    other = [MeasuredPass(p.degree, p.lengths, p.seconds * (1 + 1e-14)) for p in passes]
    assert fit_passes(passes, PRIOR, 8).model == fit_passes(other, PRIOR, 8).model
