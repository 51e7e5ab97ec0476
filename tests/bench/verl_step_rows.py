"""The batch that `tests/bench/verl_step.py` gives verl, made of our groups."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rljob_api.algorithm import Algorithm
from rljob_runtime.objective.advantages import estimator
from rljob_runtime.samples import Group
from rljob_runtime.trainer.batch import rewards_of
from rljob_runtime.trainer.outline import outline_of


def padded(groups: Sequence[Group]) -> dict[str, Tensor]:
    """A batch as verl's trainers hold it: a row for each sample, prompts padded on the left and responses on
    the right, so that all responses begin in the same column.

    `prompts`, `responses`, `input_ids` (prompt, then response), `attention_mask`, and `position_ids` counted
    from a prompt's first token, int64; `response_mask`, int64, `old_log_probs` and `advantages`, float32, of
    the responses' columns. A sample without a reward has advantage 0.
    """
    rows = [(group.prompt, sample) for group in groups for sample in group.samples]
    prompt_width = max(len(prompt) for prompt, _ in rows)
    response_width = max(len(sample.tokens) for _, sample in rows)
    prompts = np.zeros((len(rows), prompt_width), np.int64)
    responses = np.zeros((len(rows), response_width), np.int64)
    prompt_mask, response_mask = np.zeros_like(prompts), np.zeros_like(responses)
    old = np.zeros(responses.shape, np.float32)
    for row, (prompt, sample) in enumerate(rows):
        begin, end = prompt_width - len(prompt), len(sample.tokens)
        prompts[row, begin:], prompt_mask[row, begin:] = prompt, 1
        responses[row, :end], response_mask[row, :end] = sample.tokens, 1
        old[row, :end] = sample.log_probs
    mask = np.concatenate([prompt_mask, response_mask], axis=1)
    arrays = {
        "prompts": prompts,
        "responses": responses,
        "input_ids": np.concatenate([prompts, responses], axis=1),
        "attention_mask": mask,
        "position_ids": np.maximum(mask.cumsum(axis=1) - 1, 0),
        "response_mask": response_mask,
        "old_log_probs": old,
        "advantages": _advantages(groups)[:, None] * response_mask.astype(np.float32),
    }
    return {name: torch.from_numpy(array) for name, array in arrays.items()}


def _advantages(groups: Sequence[Group]) -> Any:
    """Of each sample, in the order of the rows; float32."""
    estimate = estimator(Algorithm())
    return np.concatenate(estimate([rewards_of(outline_of(group), None) for group in groups]))
