"""From groups to what is trained: responses with their advantages, and what a step says about them.

Guarantees: a response without a reward, and one without tokens, is not trained, but the latter's reward
counts in its group; the order of responses is that of uids, then of samples. Pure numpy.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rljob_runtime.parallel.microbatch import Item
from rljob_runtime.samples import Group, LogProbs, Sample, Tokens
from rljob_runtime.trainer.advantage import group_advantages


@dataclass(frozen=True)
class Response:
    """A response that is trained."""

    item: Item
    prompt: Tokens
    tokens: Tokens
    log_probs: LogProbs
    """As the engines gave them."""
    advantage: float
    current: NDArray[np.bool_]
    """Which tokens were drawn with the weights that the step begins with; shape (response length,)."""


def responses_of(
    groups: Sequence[Group], normalize_by_std: bool, current_version: int | None
) -> list[Response]:
    """The responses that are trained. `current_version`: the version whose weights the step begins with, None
    where the trainer has gone on since it was published. Raises `ValueError` for an empty prompt."""
    found = []
    for group in groups:
        if len(group.prompt) == 0:
            raise ValueError(
                f"group {group.uid} (row {group.row}) has an empty prompt: nothing predicts a first token"
            )
        rewards = np.array([sample.reward for sample in group.samples], dtype=np.float64)
        valid = np.array([sample.failure is None for sample in group.samples], dtype=np.bool_)
        advantages = group_advantages(rewards, valid, normalize_by_std)
        for index, sample in enumerate(group.samples):
            if valid[index] and len(sample.tokens):
                item = Item(group.uid, index, len(group.prompt) + len(sample.tokens))
                current = _drawn_with(sample, current_version)
                found.append(
                    Response(
                        item, group.prompt, sample.tokens, sample.log_probs, float(advantages[index]), current
                    )
                )
    return found


def describe(groups: Sequence[Group], version: int) -> dict[str, Any]:
    """The `StepMetrics` fields that follow from the groups alone; `version` is the one trained with."""
    samples = [sample for group in groups for sample in group.samples]
    rewards = np.array([sample.reward for sample in samples if sample.failure is None], dtype=np.float64)
    lengths = np.array([len(sample.tokens) for sample in samples], dtype=np.int64)
    trained = [sample for sample in samples if sample.failure is None and sample.first_version is not None]
    ages = np.array([version - sample.spans[0].version for sample in trained], dtype=np.int64)
    values, counts = np.unique(ages, return_counts=True)
    return {
        "reward_mean": float(rewards.mean()) if len(rewards) else float("nan"),
        "reward_std": float(rewards.std()) if len(rewards) else float("nan"),
        "samples": len(samples),
        "failed": sum(sample.failure is not None for sample in samples),
        "response_length_mean": float(lengths.mean()) if len(lengths) else 0.0,
        "response_length_max": int(lengths.max(initial=0)),
        "staleness_mean": float(ages.mean()) if len(ages) else 0.0,
        "staleness_max": int(ages.max()) if len(ages) else 0,
        "staleness_histogram": {int(age): int(count) for age, count in zip(values, counts, strict=True)},
        "mixed_share": sum(len(sample.spans) > 1 for sample in trained) / max(1, len(trained)),
    }


def _drawn_with(sample: Sample, version: int | None) -> NDArray[np.bool_]:
    mask = np.zeros(len(sample.tokens), dtype=np.bool_)
    for span in sample.spans:
        # No span has version None, so that without a version no token counts as current.
        mask[span.start : span.end] = span.version == version
    return mask
