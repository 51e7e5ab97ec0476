"""Several samples in one sequence, without padding, each attending to itself alone.

Guarantees: what the model computes for a sample is what it computes for the sample by itself; the model sees
as many tokens as the samples have.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rljob_runtime.trainer.attention import LayOut, Layout
from rljob_runtime.trainer.host_copy import indices_to_device
from rljob_runtime.trainer.rectangles import Rectangles


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
    responses: Tensor
    """Which sample each response token belongs to; shape (response tokens,), int64."""
    lengths: Tensor
    """Length of each response, in main memory; shape (samples,), int64."""
    layout: Layout

    @property
    def size(self) -> int:
        """Tokens of prompts and responses."""
        return self.input_ids.numel()


def pack(
    prompts: Sequence[NDArray[np.int32]],
    responses: Sequence[NDArray[np.int32]],
    device: torch.device,
    lay_out: LayOut = Rectangles.of,
) -> Packed:
    """Pack samples, each a prompt with its response; neither may be empty. `lay_out` makes the layout."""
    lengths = [len(prompt) + len(response) for prompt, response in zip(prompts, responses, strict=True)]
    starts = np.cumsum([0, *lengths[:-1]])
    # The logits at a position are those of the token after it.
    predicting = [
        np.arange(start + len(prompt) - 1, start + length - 1)
        for start, prompt, length in zip(starts, prompts, lengths, strict=True)
    ]
    tokens = [part for pair in zip(prompts, responses, strict=True) for part in pair]

    def tensor(values: NDArray[Any]) -> Tensor:
        return indices_to_device(values, device)

    drawn = np.array([len(response) for response in responses])
    # In two dimensions from the first on: to a compiler a view is another form, and would be compiled anew.
    return Packed(
        input_ids=tensor(np.concatenate(tokens)[None]),
        position_ids=tensor(np.concatenate([np.arange(length) for length in lengths])[None]),
        predicting=tensor(np.concatenate(predicting)),
        targets=tensor(np.concatenate(responses)),
        responses=tensor(np.repeat(np.arange(len(drawn)), drawn)),
        lengths=torch.from_numpy(drawn),
        layout=lay_out(lengths, device),
    )
