"""Attention with caps and sinks, in blocks, against the formula."""

import itertools

import pytest
import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from rljob_runtime.trainer import block_attention
from rljob_runtime.trainer.block_attention import Rule, in_blocks

SAMPLES, HEADS, SHARED, SIZE, WIDTH = 3, 4, 2, 8, 6


def drawn(queries: int, keys: int, dtype: torch.dtype = torch.float64) -> list[Tensor]:
    """Queries, keys, values and sinks, and a slope of the result. Scores reach far beyond a cap of 2."""
    torch.manual_seed(queries)
    shapes = (
        (SAMPLES, HEADS, queries, SIZE), (SAMPLES, SHARED, keys, SIZE), (SAMPLES, SHARED, keys, WIDTH),
        (HEADS,), (SAMPLES, HEADS, queries, WIDTH),
    )  # fmt: skip
    return [torch.randn(shape, dtype=torch.float64).to(dtype).requires_grad_() for shape in shapes]


def formula(query: Tensor, key: Tensor, value: Tensor, sinks: Tensor | None, rule: Rule) -> Tensor:
    key, value = (each.repeat_interleave(HEADS // SHARED, 1) for each in (key, value))
    scores = query @ key.mT * (SIZE**-0.5 if rule.scaling is None else rule.scaling)
    if rule.cap is not None:
        scores = rule.cap * torch.tanh(scores / rule.cap)
    places = torch.arange(key.shape[2])
    away = (places[-query.shape[2] :, None]) - places
    seen = (away >= 0) & (away < (rule.window or 1000))
    scores = scores.masked_fill(~seen, float("-inf"))
    if sinks is not None:
        scores = torch.cat([scores, sinks[:, None, None].expand(*scores.shape[:3], 1)], -1)
    return scores.softmax(-1)[..., : key.shape[2]] @ value


@pytest.mark.parametrize(
    ("cap", "sunk", "window"), list(itertools.product([None, 2.0], [False, True], [None, 1, 3, 100]))
)
def test_results_and_gradients_against_the_formula(
    monkeypatch: pytest.MonkeyPatch, cap: float | None, sunk: bool, window: int | None
) -> None:
    for (queries, keys), held, scaling in (
        ((9, 9), 10**6, None),
        ((9, 9), 4 * SAMPLES * HEADS * 9, 1.3),
        ((5, 12), 2 * SAMPLES * HEADS * 12, None),
        ((7, 8), 1, None),
        ((1, 1), 1, None),
    ):
        monkeypatch.setattr(block_attention, "_SCORES", held)
        *inputs, sinks, slope = drawn(queries, keys)
        of = [*inputs, sinks] if sunk else inputs
        rule = Rule(scaling, window, cap)
        results = []
        for attend in (in_blocks, formula):
            found = attend(inputs[0], inputs[1], inputs[2], sinks if sunk else None, rule)
            results.append([found, *torch.autograd.grad((found * slope).sum(), of)])
        for one, other in zip(*results, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-13, atol=1e-13)


@pytest.mark.parametrize(("queries", "keys", "window"), [(512, 512, 16), (500, 700, 16), (100, 100, 50)])
def test_no_more_than_twice_the_keys_of_a_window_are_looked_at(queries: int, keys: int, window: int) -> None:
    """However many scores are held: a block of as many queries as those allow would look at all keys."""
    query, key, value = (each.detach() for each in drawn(queries, keys)[:3])
    with FlopCounterMode(display=False) as counted:
        in_blocks(query, key, value, None, Rule(None, window, None))
    of_window = 2 * SAMPLES * HEADS * queries * window * (SIZE + WIDTH)
    assert counted.get_total_flops() <= 2 * of_window


def test_scores_of_bfloat16_are_not_rounded() -> None:
    """Only what is multiplied, as by a kernel: with a cap of 2 all scores that are above would be one."""
    *inputs, sinks, slope = drawn(40, 40, torch.bfloat16)
    rule = Rule(1.0, None, 30.0)
    results = []
    for attend, wide in ((in_blocks, False), (formula, True)):
        given = [each.double() if wide else each for each in (*inputs, sinks)]
        found = attend(*given, rule)
        gradients = torch.autograd.grad((found * slope).sum(), (*inputs, sinks))
        results.append([found, *gradients])
    assert results[0][0].dtype == torch.bfloat16
    for one, other in zip(*results, strict=True):
        assert (one.double() - other.double()).norm() < 0.01 * other.double().norm()
