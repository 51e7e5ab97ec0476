"""Attention over packed samples with kernels that take rectangles of samples.

Guarantees: samples of like length are padded to their longest (by at most a third, for lengths above 64);
causality keeps the padding, which is on the right, out of every result.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rljob_runtime.trainer.attention_call import AttentionCall
from rljob_runtime.trainer.host_copy import indices_to_device

_SHORT = 64
"""Samples of at most so many tokens share one rectangle, whatever their lengths."""


@dataclass(frozen=True)
class Rectangle:
    """Samples that share one attention call."""

    take: Tensor
    """Index of the token at each place, shape (samples, longest), int64; padding repeats the first token."""
    keep: Tensor
    """Which places, counted row by row, hold a token; shape (tokens of these samples,), int64."""


@dataclass(frozen=True)
class Rectangles:
    """A `Layout` that calls attention once for each rectangle."""

    rectangles: tuple[Rectangle, ...]
    order: Tensor
    """Where each packed token is found among the kept tokens of all rectangles; shape (tokens,), int64."""

    @classmethod
    def of(cls, lengths: Sequence[int], device: torch.device) -> "Rectangles":
        """The layout of samples of these lengths, one after the other."""
        starts = np.cumsum([0, *lengths[:-1]])

        def tensor(values: NDArray[Any]) -> Tensor:
            return indices_to_device(values, device)

        rectangles = []
        kept = []
        # The first member is the longest.
        for members in _alike(lengths):
            longest = lengths[members[0]]
            places = np.arange(longest)[None, :]
            inside = places < np.array([lengths[index] for index in members])[:, None]
            take = starts[members][:, None] + np.where(inside, places, 0)
            rectangles.append(Rectangle(tensor(take), tensor(np.flatnonzero(inside))))
            # In the order in which attention gives them back: row by row, without the padding.
            kept.append(take[inside])
        # argsort of a permutation is its inverse.
        return cls(tuple(rectangles), tensor(np.argsort(np.concatenate(kept))))

    def attend(self, call: AttentionCall) -> Tensor:
        """See `Layout.attend`."""
        from transformers.integrations.sdpa_attention import sdpa_attention_forward

        parts = []
        for rectangle in self.rectangles:
            # From (heads, tokens, size) to (samples, heads, longest, size).
            inputs = (
                each[0][:, rectangle.take].transpose(0, 1) for each in (call.query, call.key, call.value)
            )
            mask = _window_mask(rectangle.take.shape[1], call.window, call.query.device)
            # With a mask transformers ignores is_causal; the mask of a window is causal itself.
            out, _ = sdpa_attention_forward(
                call.module, *inputs, attention_mask=mask, scaling=call.scaling, is_causal=True
            )
            parts.append(out.flatten(0, 1)[rectangle.keep])
        return torch.cat(parts)[self.order][None]


def _alike(lengths: Sequence[int]) -> list[list[int]]:
    """Samples in sets of like length, longest first."""
    sets: list[list[int]] = []
    for index in sorted(range(len(lengths)), key=lambda index: (-lengths[index], index)):
        if not sets or lengths[sets[-1][0]] > max(_SHORT, 4 / 3 * lengths[index]):
            sets.append([])
        sets[-1].append(index)
    return sets


def _window_mask(length: int, window: int | None, device: torch.device) -> Tensor | None:
    """The mask of a sliding window, shape (1, 1, length, length), True where a query sees a key; None where
    the window leaves no key out."""
    if window is None or length <= window:
        return None
    seen = torch.ones(length, length, dtype=torch.bool, device=device).tril()
    return (seen & ~seen.tril(-window))[None, None]
