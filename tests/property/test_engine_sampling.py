"""The torch engine's sampler: distribution, restriction, independence of rows."""

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rljob_runtime.engines.protocol import Sampling
from rljob_runtime.engines.torch_sampling import draw, draw_each, restrict, seed_word, uniforms
from tests.support.depth import examples

LOGITS = st.lists(st.floats(-20, 20, width=32), min_size=2, max_size=12)


def sampling(temperature: float = 1.0, top_k: int = 0, top_p: float = 1.0) -> Sampling:
    return Sampling(temperature=temperature, top_k=top_k, top_p=top_p)


def plain_restriction(logits: list[float], top_k: int, top_p: float) -> set[int]:
    """The tokens that stay, one by one in order of probability."""
    values = np.array(logits, np.float64)
    stay = [i for i in range(len(values)) if not top_k or (values > values[i]).sum() < top_k]
    stay.sort(key=lambda i: -values[i])
    weights = np.exp(values[stay] - values.max())
    kept, total = set(), 0.0
    for token, weight in zip(stay, weights / weights.sum(), strict=True):
        if total >= top_p and top_p < 1.0:
            break
        kept.add(token)
        total += weight
    return kept


@settings(deadline=None)
@given(logits=LOGITS, top_k=st.integers(0, 14), top_p=st.sampled_from([0.1, 0.5, 0.9, 1.0]))
def test_restriction_keeps_the_most_probable_tokens(logits: list[float], top_k: int, top_p: float) -> None:
    restricted = restrict(torch.tensor([logits]), sampling(top_k=top_k, top_p=top_p))[0]
    kept = {token for token in range(len(logits)) if restricted[token] > -torch.inf}
    edge = 0 if top_p == 1.0 else 1  # rounding may decide about the token at the edge of top-p
    assert kept
    assert len(kept ^ plain_restriction(logits, top_k, top_p)) <= edge


@settings(deadline=None)
@given(logits=LOGITS, random=st.floats(0, 1, exclude_max=True), temperature=st.floats(0.2, 3))
def test_a_drawn_token_is_possible_and_has_the_log_probability_of_its_distribution(
    logits: list[float], random: float, temperature: float
) -> None:
    rules = sampling(temperature, top_k=3)
    tokens, log_probs = draw(torch.tensor([logits]), np.array([random]), rules)
    expected = restrict(torch.tensor([logits]) / temperature, rules).log_softmax(-1)[0]
    assert expected[tokens[0]] > -torch.inf
    assert log_probs[0] == expected[tokens[0]]


@settings(deadline=None)
@given(
    rows=st.lists(st.lists(st.floats(-20, 20, width=32), min_size=7, max_size=7), min_size=1, max_size=6),
    data=st.data(),
)
def test_a_row_does_not_depend_on_its_neighbours(rows: list[list[float]], data: st.DataObject) -> None:
    randoms = np.array(data.draw(st.lists(st.floats(0, 0.999), min_size=len(rows), max_size=len(rows))))
    rules = sampling(0.7, top_k=5, top_p=0.9)
    together = draw(torch.tensor(rows), randoms, rules)
    for index, row in enumerate(rows):
        alone = draw(torch.tensor([row]), randoms[index : index + 1], rules)
        assert (together[0][index], together[1][index]) == (alone[0][0], alone[1][0])


def test_draws_follow_the_distribution() -> None:
    logits = torch.tensor([[0.0, 1.0, -1.0, 2.0]])
    count = 40_000
    randoms = uniforms(np.full(count, seed_word(5), np.uint64), np.arange(count, dtype=np.uint64))
    tokens, _ = draw(logits.expand(count, -1), randoms, sampling())
    frequencies = np.bincount(tokens, minlength=4) / count
    np.testing.assert_allclose(frequencies, logits.softmax(-1)[0].numpy(), atol=0.01)


@settings(max_examples=examples(200), deadline=None)
@given(seed=st.integers(), position=st.integers(0, 2**40))
def test_uniforms_are_below_one_and_depend_on_seed_and_position(seed: int, position: int) -> None:
    seeds = np.array([seed_word(seed), seed_word(seed), seed_word(seed + 1)], np.uint64)
    values = uniforms(seeds, np.array([position, position + 1, position], np.uint64))
    assert ((values >= 0) & (values < 1)).all()
    assert len(set(values)) == 3


def test_uniforms_of_neighbouring_seeds_and_positions_are_uncorrelated() -> None:
    count = 200
    grid = np.arange(count, dtype=np.uint64)
    values = uniforms(np.repeat(grid, count), np.tile(grid, count)).reshape(count, count)
    assert abs(values.mean() - 0.5) < 0.01
    assert abs(np.corrcoef(values[:-1].ravel(), values[1:].ravel())[0, 1]) < 0.02
    assert abs(np.corrcoef(values[:, :-1].ravel(), values[:, 1:].ravel())[0, 1]) < 0.02


@given(
    rows=st.lists(st.lists(st.floats(-20, 20), min_size=6, max_size=6), min_size=1, max_size=8),
    data=st.data(),
)
def test_each_row_is_drawn_as_if_all_had_its_sampling(rows: list[list[float]], data: st.DataObject) -> None:
    logits = torch.tensor(rows)
    kinds = [Sampling(), Sampling(temperature=0.0), Sampling(0.5, top_p=0.9), Sampling(top_k=2)]
    samplings = data.draw(st.lists(st.sampled_from(kinds), min_size=len(rows), max_size=len(rows)))
    randoms = uniforms(np.arange(len(rows), dtype=np.uint64), np.zeros(len(rows), np.uint64))
    tokens, log_probs = draw_each(logits, randoms, samplings)
    for row, sampling in enumerate(samplings):
        expected = draw(logits, randoms, sampling)
        assert (tokens[row], log_probs[row]) == (expected[0][row], expected[1][row])
    for row in [row for row, sampling in enumerate(samplings) if sampling.temperature == 0]:
        assert (tokens[row], log_probs[row]) == (logits[row].argmax(), 0.0)
