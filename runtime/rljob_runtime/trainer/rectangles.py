"""Attention over packed samples with kernels that take rectangles of samples.

Guarantees: samples of like length are padded to their longest (by at most a third, for lengths above 64);
causality keeps the padding, which is on the right, out of every result.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from rljob_runtime.trainer.attention_call import AttentionCall
from rljob_runtime.trainer.block_attention import Rule, in_blocks
from rljob_runtime.trainer.host_copy import indices_to_device
from rljob_runtime.trainer.rows import picked, rearranged

_SHORT = 64
"""Samples of at most so many tokens share one rectangle, whatever their lengths."""
_KERNELS = [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]
"""Without cuDNN's, which are made anew for each shape: rectangles have other ones in every micro-batch."""


@dataclass(frozen=True)
class Rectangles:
    """A `Layout` that calls attention once for each rectangle."""

    shapes: tuple[tuple[int, int], ...]
    """Samples of each rectangle, and tokens of its longest."""
    take: Tensor
    """Index of the token at each place of the rectangles, one after the other, row by row; padding repeats
    the first token of its sample; shape (places,), int64."""
    place: Tensor
    """The place of each packed token, which it has besides padding; shape (tokens,), int64."""

    @classmethod
    def of(cls, lengths: Sequence[int], device: torch.device) -> "Rectangles":
        """The layout of samples of these lengths, one after the other."""
        starts = np.cumsum([0, *lengths[:-1]])
        sets = _alike(lengths)
        # The first member is the longest.
        shapes = tuple((len(members), lengths[members[0]]) for members in sets)
        taken, inside = [], []
        for members, (_, longest) in zip(sets, shapes, strict=True):
            places = np.arange(longest)[None, :]
            real = places < np.array([lengths[index] for index in members])[:, None]
            taken.append((starts[members][:, None] + np.where(real, places, 0)).ravel())
            inside.append(real.ravel())
        take, kept = np.concatenate(taken), np.flatnonzero(np.concatenate(inside))
        place = np.empty_like(kept)
        place[take[kept]] = kept
        return cls(shapes, indices_to_device(take, device), indices_to_device(place, device))

    def attend(self, call: AttentionCall) -> Tensor:
        """See `Layout.attend`."""
        sizes = [samples * longest for samples, longest in self.shapes]
        # From (1, heads, tokens, size) to (places, heads, size), and that by rectangles. Padding gets no
        # gradient: nothing that is kept sees it.
        query, key, value = (
            torch.split(rearranged(each[0].transpose(0, 1), self.take, self.place), sizes)
            for each in (call.query, call.key, call.value)
        )
        parts = []
        for shape, *rows in zip(self.shapes, query, key, value, strict=True):
            # To (samples, heads, longest, size).
            inputs = (each.view(*shape, *each.shape[1:]).transpose(1, 2) for each in rows)
            parts.append(_attention(call, *inputs).flatten(0, 1))
        return picked(torch.cat(parts), self.place)[None]


def _attention(call: AttentionCall, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """What the layer asked for, of the samples of a rectangle, shape (samples, heads, longest, size); the
    result has shape (samples, longest, heads, size)."""
    from transformers.integrations.sdpa_attention import sdpa_attention_forward

    if call.cap is not None or call.sinks is not None:
        rule = Rule(call.scaling, call.window, call.cap)
        return in_blocks(query, key, value, call.sinks, rule).transpose(1, 2)
    mask = _window_mask(query.shape[2], call.window, query.device)
    # With a mask transformers ignores is_causal; the mask of a window is causal itself.
    with sdpa_kernel(_KERNELS):
        out: Tensor = sdpa_attention_forward(
            call.module, query, key, value, attention_mask=mask, scaling=call.scaling, is_causal=True
        )[0]
    return out


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
