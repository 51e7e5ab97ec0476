"""Several samples in one sequence, without padding, each attending to itself alone.

Guarantees: what the model computes for a sample is what it computes for the sample by itself; the model sees
as many tokens as the samples have. Only inside attention samples of like length are padded to their longest
(by at most a third, for lengths above 64), since fused attention kernels want rectangles; causality keeps
the padding, which is on the right, out of every result.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

ATTENTION = "rljob_packed"
"""Name under which transformers finds `_attention`."""

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
class Layout:
    """How the packed tokens are laid out for attention."""

    rectangles: tuple[Rectangle, ...]
    order: Tensor
    """Where each packed token is found among the kept tokens of all rectangles; shape (tokens,), int64."""


@dataclass(frozen=True)
class Packed:
    """Samples, ready for the model."""

    input_ids: Tensor
    """Shape (1, tokens), int64."""
    position_ids: Tensor
    """Shape (1, tokens), int64; from 0 in each sample."""
    predicting: Tensor
    """Index of the token before each response token; shape (response tokens,), int64."""
    targets: Tensor
    """The response tokens; shape (response tokens,), int64."""
    lengths: Tensor
    """Length of each response; shape (samples,), int64."""
    layout: Layout

    @property
    def size(self) -> int:
        """Tokens of prompts and responses."""
        return self.input_ids.numel()

    @property
    def responses(self) -> Tensor:
        """Which sample each response token belongs to; shape (response tokens,), int64."""
        return torch.arange(len(self.lengths), device=self.lengths.device).repeat_interleave(self.lengths)


def pack(
    prompts: Sequence[NDArray[np.int32]], responses: Sequence[NDArray[np.int32]], device: torch.device
) -> Packed:
    """Pack samples, each a prompt with its response; neither may be empty."""
    lengths = [len(prompt) + len(response) for prompt, response in zip(prompts, responses, strict=True)]
    starts = np.cumsum([0, *lengths[:-1]])
    # The logits at a position are those of the token after it.
    predicting = [
        np.arange(start + len(prompt) - 1, start + length - 1)
        for start, prompt, length in zip(starts, prompts, lengths, strict=True)
    ]
    tokens = [part for pair in zip(prompts, responses, strict=True) for part in pair]

    def tensor(values: NDArray[Any]) -> Tensor:
        return torch.from_numpy(values.astype(np.int64)).to(device)

    return Packed(
        input_ids=tensor(np.concatenate(tokens))[None],
        position_ids=tensor(np.concatenate([np.arange(length) for length in lengths]))[None],
        predicting=tensor(np.concatenate(predicting)),
        targets=tensor(np.concatenate(responses)),
        lengths=tensor(np.array([len(response) for response in responses])),
        layout=_layout(starts, lengths, tensor),
    )


def _layout(starts: NDArray[Any], lengths: Sequence[int], tensor: Any) -> Layout:
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
    return Layout(tuple(rectangles), tensor(np.argsort(np.concatenate(kept))))


def _alike(lengths: Sequence[int]) -> list[list[int]]:
    """Samples in sets of like length, longest first."""
    sets: list[list[int]] = []
    for index in sorted(range(len(lengths)), key=lambda index: (-lengths[index], index)):
        if not sets or lengths[sets[-1][0]] > max(_SHORT, 4 / 3 * lengths[index]):
            sets.append([])
        sets[-1].append(index)
    return sets


def register_attention() -> None:
    """Make `ATTENTION` known to transformers."""
    from transformers import AttentionInterface

    AttentionInterface.register(ATTENTION, _attention)


def _attention(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    sliding_window: int | None = None,
    packing: Layout | None = None,
    **options: Any,
) -> tuple[Tensor, None]:
    """Attention over packed samples, in the form of transformers' attention functions.

    `query` has shape (1, heads, tokens, head size), `key` and `value` have fewer heads where they are
    shared; the result has shape (1, tokens, heads, head size).
    """
    from transformers.integrations.sdpa_attention import sdpa_attention_forward

    unknown = {name for name in ("softcap", "s_aux", "position_bias") if options.get(name) is not None}
    if packing is None or unknown:
        what = (
            f"attention with {', '.join(sorted(unknown))}" if unknown else "an attention call of its own kind"
        )
        raise NotImplementedError(
            f"{type(module).__name__}: this model has {what}, which the trainer does not have"
        )
    parts = []
    for rectangle in packing.rectangles:
        # From (heads, tokens, size) to (samples, heads, longest, size).
        inputs = (each[0][:, rectangle.take].transpose(0, 1) for each in (query, key, value))
        mask = _window_mask(rectangle.take.shape[1], sliding_window, query.device)
        # With a mask transformers ignores is_causal; the mask of a window is causal itself.
        out, _ = sdpa_attention_forward(module, *inputs, attention_mask=mask, scaling=scaling, is_causal=True)
        parts.append(out.flatten(0, 1)[rectangle.keep])
    return torch.cat(parts)[packing.order][None], None


def _window_mask(length: int, window: int | None, device: torch.device) -> Tensor | None:
    """The mask of a sliding window, shape (1, 1, length, length), True where a query sees a key; None where
    the window leaves no key out."""
    if window is None or length <= window:
        return None
    seen = torch.ones(length, length, dtype=torch.bool, device=device).tril()
    return (seen & ~seen.tril(-window))[None, None]
