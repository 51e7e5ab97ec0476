"""From groups to what is trained: responses with their advantages, and what a step says about them. All of
it follows from the groups' outlines; no tokens are needed.

Guarantees: a response without a reward, and one without tokens that may be trained, is not trained, but the
latter's reward counts in its group; the order of responses is that of uids, then of samples. Pure numpy.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rljob_api.schedule import Schedule
from rljob_runtime.groups.filter import all_equal
from rljob_runtime.groups.masking import context_tokens
from rljob_runtime.named_means import mean, means_by_name
from rljob_runtime.objective.advantages import Estimator, GroupRewards
from rljob_runtime.parallel.micro_batches import Item
from rljob_runtime.parallel.mini_batches import split_groups
from rljob_runtime.samples import Span
from rljob_runtime.trainer.outline import GroupOutline, SampleOutline
from rljob_runtime.trainer.step_metrics import MaskedTokens


@dataclass(frozen=True)
class Response:
    """A response that is trained."""

    item: Item
    context: int
    """Tokens at its beginning that are not trained, for their age: the rest is predicted from them too, as
    from the prompt."""
    length: int
    """Tokens of the response that are trained: those behind the context."""
    spans: tuple[Span, ...]
    """Which weights drew which tokens of the response, its context included."""
    advantage: float

    def drawn_with(self, version: int | None) -> NDArray[np.bool_]:
        """Which of the trained tokens were drawn with the weights of `version`; shape (length,)."""
        mask = np.zeros(self.context + self.length, dtype=np.bool_)
        for span in self.spans:
            mask[span.start : span.end] = span.version == version
        return mask[self.context :]


def responses_of(
    groups: Sequence[GroupOutline], estimate: Estimator, oldest: int | None = None
) -> list[Response]:
    """What is trained of the groups of a step: tokens of version `oldest` and later ones, all where it is
    None. `estimate` gives the advantages. Raises `ValueError` for an empty prompt, and what `estimate`
    raises."""
    return [response for found in _by_group(groups, estimate, oldest) for response in found]


def batches_of(
    groups: Sequence[GroupOutline], schedule: Schedule, estimate: Estimator, oldest: int | None = None
) -> list[list[Response]]:
    """What each update of a step trains of its groups, which are sorted by uid; nothing of an update whose
    groups have nothing. Advantages are those of the whole step. Raises as `responses_of`."""
    each = _by_group(groups, estimate, oldest)
    tokens = [sum(response.item.tokens for response in found) for found in each]
    updates = split_groups(tokens, schedule.prompts_per_batch, schedule.batch_order)
    return [[response for index in update for response in each[index]] for update in updates]


def rewards_of(group: GroupOutline, oldest: int | None) -> GroupRewards:
    """What the group's advantages are computed from; `oldest` as in `responses_of`."""
    counted = np.array([not sample.failed for sample in group.samples], dtype=np.bool_)
    trained = [sample.length - context_tokens(sample.spans, oldest) for sample in group.samples]
    return GroupRewards(
        group.uid,
        group.row,
        np.array([sample.reward for sample in group.samples], dtype=np.float64),
        counted,
        np.where(counted, np.array(trained, dtype=np.int64), 0),
    )


def _by_group(
    groups: Sequence[GroupOutline], estimate: Estimator, oldest: int | None
) -> list[list[Response]]:
    """As `responses_of`, of each group."""
    for group in groups:
        if group.prompt_length == 0:
            raise ValueError(
                f"group {group.uid} (row {group.row}) has an empty prompt: nothing predicts a first token"
            )
    scored = [rewards_of(group, oldest) for group in groups]
    return [
        list(_trained(group, rewards, advantages))
        for group, rewards, advantages in zip(groups, scored, estimate(scored), strict=True)
    ]


def _trained(
    group: GroupOutline, rewards: GroupRewards, advantages: NDArray[np.float32]
) -> Iterator[Response]:
    for index, sample in enumerate(group.samples):
        if (length := int(rewards.tokens[index])) > 0:
            item = Item(group.uid, index, group.prompt_length + sample.length)
            yield Response(item, sample.length - length, length, sample.spans, float(advantages[index]))


def describe(groups: Sequence[GroupOutline], version: int, oldest: int | None = None) -> dict[str, Any]:
    """The `StepMetrics` fields that follow from the groups alone; `version` is the one trained with, `oldest`
    the oldest whose tokens are trained, None where all are."""
    samples = [sample for group in groups for sample in group.samples]
    rewards = np.array([sample.reward for sample in samples if not sample.failed], dtype=np.float64)
    equal = [all_equal([_score(sample) for sample in group.samples]) for group in groups]
    lengths = np.array([sample.length for sample in samples], dtype=np.int64)
    trained = [sample for sample in samples if not sample.failed and sample.spans]
    ages = np.array([version - sample.spans[0].version for sample in trained], dtype=np.int64)
    values, counts = np.unique(ages, return_counts=True)
    return {
        "reward_mean": mean(rewards.tolist()) if len(rewards) else float("nan"),
        "reward_std": float(rewards.std()) if len(rewards) else float("nan"),
        **_distribution(rewards),
        "equal_groups": sum(equal) / max(1, len(equal)),
        "reward_parts": means_by_name(sample.reward_parts for sample in samples),
        "reward_metrics": means_by_name(sample.reward_metrics for sample in samples),
        "reward_values_failed": sum(sample.reward_values_failed for sample in samples),
        "samples": len(samples),
        "failed": sum(sample.failed for sample in samples),
        "response_length_mean": float(lengths.mean()) if len(lengths) else 0.0,
        "response_length_max": int(lengths.max(initial=0)),
        "cut_off": sum(sample.cut_off for sample in samples) / max(1, len(samples)),
        "staleness_mean": float(ages.mean()) if len(ages) else 0.0,
        "staleness_max": int(ages.max()) if len(ages) else 0,
        "staleness_histogram": {int(age): int(count) for age, count in zip(values, counts, strict=True)},
        "mixed_share": sum(len(sample.spans) > 1 for sample in trained) / max(1, len(trained)),
        "masked": None if oldest is None else describe_masked(trained, version, oldest),
    }


def _distribution(rewards: NDArray[np.float64]) -> dict[str, float]:
    """From the lowest to the highest; not a number where there are none."""
    shares = {"min": 0.0, "p10": 0.1, "median": 0.5, "p90": 0.9, "max": 1.0}
    found = np.quantile(rewards, list(shares.values())) if len(rewards) else np.full(len(shares), np.nan)
    return {f"reward_{name}": float(value) for name, value in zip(shares, found, strict=True)}


def _score(sample: SampleOutline) -> tuple[float, str | None]:
    return sample.reward, "failed" if sample.failed else None


def describe_masked(samples: Sequence[SampleOutline], version: int, oldest: int) -> MaskedTokens:
    """What is not trained of these responses, since it is older than version `oldest`. Each of them has
    tokens and a reward."""
    lengths = np.array([sample.length for sample in samples], dtype=np.int64)
    contexts = np.array([context_tokens(sample.spans, oldest) for sample in samples], dtype=np.int64)
    fresh = [span.version for sample in samples for span in sample.spans if span.version >= oldest]
    # Stable, so that responses of one length are in the same quarters on every rank.
    quarters = np.array_split(np.argsort(lengths, kind="stable"), 4)
    shares = [_share(contexts[quarter], lengths[quarter]) for quarter in quarters]
    return MaskedTokens(
        tokens=_share(contexts, lengths),
        responses=float((contexts == lengths).mean()) if len(samples) else 0.0,
        oldest_trained=version - min(fresh, default=version),
        shortest_quarter=shares[0],
        second_quarter=shares[1],
        third_quarter=shares[2],
        longest_quarter=shares[3],
    )


def _share(part: NDArray[np.int64], whole: NDArray[np.int64]) -> float:
    return float(part.sum() / max(1, whole.sum()))
