"""From groups to what is trained: responses with their advantages, and what a step says about them. All of
it follows from the groups' outlines; no tokens are needed.

Guarantees: a response without a reward, and one without tokens, is not trained, but the latter's reward
counts in its group; the order of responses is that of uids, then of samples. Pure numpy.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rljob_runtime.parallel.microbatch import Item
from rljob_runtime.samples import Span
from rljob_runtime.trainer.advantage import group_advantages
from rljob_runtime.trainer.outline import GroupOutline


@dataclass(frozen=True)
class Response:
    """A response that is trained."""

    item: Item
    length: int
    """Tokens of the response."""
    spans: tuple[Span, ...]
    """Which weights drew which of them."""
    advantage: float

    def drawn_with(self, version: int | None) -> NDArray[np.bool_]:
        """Which tokens were drawn with the weights of `version`; shape (response length,)."""
        mask = np.zeros(self.length, dtype=np.bool_)
        for span in self.spans:
            mask[span.start : span.end] = span.version == version
        return mask


def responses_of(groups: Sequence[GroupOutline], normalize_by_std: bool) -> list[Response]:
    """What is trained of the groups. Raises `ValueError` for an empty prompt."""
    found = []
    for group in groups:
        if group.prompt_length == 0:
            raise ValueError(
                f"group {group.uid} (row {group.row}) has an empty prompt: nothing predicts a first token"
            )
        rewards = np.array([sample.reward for sample in group.samples], dtype=np.float64)
        valid = np.array([not sample.failed for sample in group.samples], dtype=np.bool_)
        advantages = group_advantages(rewards, valid, normalize_by_std)
        for index, sample in enumerate(group.samples):
            if valid[index] and sample.length:
                item = Item(group.uid, index, group.prompt_length + sample.length)
                found.append(Response(item, sample.length, sample.spans, float(advantages[index])))
    return found


def describe(groups: Sequence[GroupOutline], version: int) -> dict[str, Any]:
    """The `StepMetrics` fields that follow from the groups alone; `version` is the one trained with."""
    samples = [sample for group in groups for sample in group.samples]
    rewards = np.array([sample.reward for sample in samples if not sample.failed], dtype=np.float64)
    lengths = np.array([sample.length for sample in samples], dtype=np.int64)
    trained = [sample for sample in samples if not sample.failed and sample.spans]
    ages = np.array([version - sample.spans[0].version for sample in trained], dtype=np.int64)
    values, counts = np.unique(ages, return_counts=True)
    return {
        "reward_mean": float(rewards.mean()) if len(rewards) else float("nan"),
        "reward_std": float(rewards.std()) if len(rewards) else float("nan"),
        "samples": len(samples),
        "failed": sum(sample.failed for sample in samples),
        "response_length_mean": float(lengths.mean()) if len(lengths) else 0.0,
        "response_length_max": int(lengths.max(initial=0)),
        "staleness_mean": float(ages.mean()) if len(ages) else 0.0,
        "staleness_max": int(ages.max()) if len(ages) else 0,
        "staleness_histogram": {int(age): int(count) for age, count in zip(values, counts, strict=True)},
        "mixed_share": sum(len(sample.spans) > 1 for sample in trained) / max(1, len(trained)),
    }
