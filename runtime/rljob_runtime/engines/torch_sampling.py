"""Drawing tokens for the torch engine.

Guarantees: a token depends on its own row of logits, its seed and its position alone; its log-probability is
that of the distribution it was drawn from, after temperature, top-k and top-p, in float32.
"""

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from rljob_runtime.engines.protocol import Sampling

_GOLDEN = 0x9E3779B97F4A7C15
"""The increment of SplitMix64: 2**64 divided by the golden ratio, as an odd number."""
_MASK = (1 << 64) - 1


def uniforms(seeds: NDArray[np.uint64], positions: NDArray[np.uint64]) -> NDArray[np.float64]:
    """One number in [0, 1) for each pair of seed and position; a counter-based generator, without state.

    SplitMix64 (Steele, Lea, Flood 2014: "Fast splittable pseudorandom number generators"): the seed is
    mixed first, so that neighbouring seeds give unrelated streams. 52 random bits, so that the product with
    a positive total is always below that total.
    """
    with np.errstate(over="ignore"):
        state = _mix(seeds) + np.uint64(_GOLDEN) * (positions + np.uint64(1))
        bits: NDArray[np.float64] = (_mix(state) >> np.uint64(12)).astype(np.float64)
    return bits * 2.0**-52


def seed_word(seed: int) -> int:
    """A seed of any size as the 64-bit word that `uniforms` takes."""
    return seed & _MASK


def draw_each(
    logits: torch.Tensor, randoms: NDArray[np.float64], samplings: Sequence[Sampling]
) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
    """As `draw`, each row by its own sampling."""
    tokens = np.zeros(len(samplings), np.int32)
    log_probs = np.zeros(len(samplings), np.float32)
    for sampling in dict.fromkeys(samplings):
        rows = [row for row, each in enumerate(samplings) if each == sampling]
        if len(rows) == len(samplings):
            return draw(logits, randoms, sampling)
        tokens[rows], log_probs[rows] = draw(logits[rows], randoms[rows], sampling)
    return tokens, log_probs


def draw(
    logits: torch.Tensor, randoms: NDArray[np.float64], sampling: Sampling
) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
    """Tokens and their log-probabilities, each of shape (rows,), by inversion of the distribution function.

    `logits` has shape (rows, vocabulary); `randoms` has shape (rows,), values in [0, 1).
    """
    if sampling.temperature == 0:
        # All of the probability is at the most probable token.
        best = logits.argmax(dim=-1)
        return best.to(torch.int32).numpy(), np.zeros(len(best), np.float32)
    log_probs = torch.log_softmax(restrict(logits.float() / sampling.temperature, sampling), dim=-1)
    # In double precision: sums over a large vocabulary would swallow its small probabilities.
    cumulative = log_probs.double().exp_().cumsum_(dim=-1)
    target = torch.from_numpy(randoms)[:, None] * cumulative[:, -1:]
    # right=True: the first entry above the target, so that a token of probability 0 is never drawn.
    tokens = torch.searchsorted(cumulative, target, right=True)
    chosen = log_probs.gather(1, tokens)[:, 0]
    return tokens[:, 0].to(torch.int32).numpy(), chosen.numpy()


def restrict(logits: torch.Tensor, sampling: Sampling) -> torch.Tensor:
    """Logits with everything outside of top-k and top-p at minus infinity; shape (rows, vocabulary).

    Top-k first (ties with the k-th stay in); then the smallest set of the most probable tokens whose
    probability reaches top-p, never empty.
    """
    if 0 < sampling.top_k < logits.shape[-1]:
        lowest = logits.topk(sampling.top_k, dim=-1).values[:, -1:]
        logits = logits.masked_fill(logits < lowest, -torch.inf)
    if sampling.top_p < 1.0:
        ordered, order = logits.sort(dim=-1, descending=True, stable=True)
        probs = ordered.softmax(dim=-1)
        # Probability of all that is more probable: the token that crosses top-p stays in.
        before = probs.cumsum(dim=-1) - probs
        outside = before >= sampling.top_p
        outside[:, 0] = False
        # argsort of a permutation is its inverse: back to the order of the vocabulary.
        logits = logits.masked_fill(outside.gather(1, order.argsort(dim=-1)), -torch.inf)
    return logits


def _mix(word: NDArray[np.uint64]) -> NDArray[np.uint64]:
    # Multipliers and shifts of SplitMix64.
    word = (word ^ (word >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    word = (word ^ (word >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return word ^ (word >> np.uint64(31))
