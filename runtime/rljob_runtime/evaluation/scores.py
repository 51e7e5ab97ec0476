"""What the rewards of an evaluation come to: mean@n and pass@k. Pure.

Guarantees: prompts and responses are counted once; a response without a reward does not pass, and is left out
of the mean.
"""

import math
from collections.abc import Mapping, Sequence

import msgspec

from rljob_runtime.named_means import mean, means_by_name

_MOST_WORDS = 300
"""Characters that are kept of a failure."""


class GradedResponse(msgspec.Struct, frozen=True):
    """What counts of a response of an evaluation."""

    reward: float | None
    """None where there is none."""
    tokens: int
    cut_off: bool = False
    """Whether it reached the largest length."""
    pinned: bool = True
    """Whether all of its tokens are of the weight version that is evaluated."""
    failure: str = ""
    """Why there is no reward, in the function's words; empty where there is one."""
    parts: Mapping[str, float] = {}
    """What the reward is made of, by name."""
    metrics: Mapping[str, float | None] = {}
    """What the reward function told beside it; None where that does not apply."""


class SetScore(msgspec.Struct, frozen=True):
    """How well the policy did on one set of prompts."""

    prompts: int
    responses: int
    failed: int
    """Responses without a reward."""
    mean: float | None
    """Mean reward of the others; None where there are none."""
    pass_at: dict[int, float]
    """By k: the estimated share of the prompts of which at least one of k responses passes."""
    response_length_mean: float
    """Tokens."""
    cut_off: float
    """Share of the responses that reached the largest length."""
    unpinned: int
    """Responses with tokens of another weight version than the one that is evaluated."""
    parts: dict[str, float] = {}
    """Of each part of the reward the mean over the responses that have it."""
    metrics: dict[str, float] = {}
    """The same of what reward functions tell beside it."""
    first_failure: str = ""
    """Why the first response without a reward has none, in one line; empty where each has one."""

    @property
    def mostly_failed(self) -> bool:
        """Whether most responses have no reward: the numbers then say nothing of the model."""
        return 2 * self.failed > self.responses


def pass_at_k(responses: int, passed: int, k: int) -> float:
    """The unbiased estimate, from `responses` of which so many passed, of the probability that at least one
    of k passes: 1 - C(n - c, k) / C(n, k) (Chen et al. 2021, arXiv:2107.03374, section 2.1). Raises
    `ValueError` for k below 1 and above `responses`."""
    if not 1 <= k <= responses:
        raise ValueError(f"k is {k}; it must be from 1 to {responses}, the number of responses")
    if responses - passed < k:
        return 1.0
    # As a product: the binomials themselves would be numbers of hundreds of digits.
    return 1.0 - math.prod(1.0 - k / i for i in range(responses - passed + 1, responses + 1))


def shown_ks(responses: int) -> list[int]:
    """The k of pass@k that are told of so many responses to each prompt: powers of two, and all of them."""
    powers = [2**power for power in range(responses.bit_length())]
    return sorted({*(k for k in powers if k <= responses), responses})


def score_set(prompts: Sequence[Sequence[GradedResponse]], pass_reward: float) -> SetScore:
    """The score of a set, from the responses to each of its prompts: equally many to each, and one at
    least."""
    each = [response for responses in prompts for response in responses]
    rewards = [response.reward for response in each if response.reward is not None]
    failures = [response.failure for response in each if response.reward is None]
    count = len(prompts[0])
    passed = [
        sum(response.reward is not None and response.reward >= pass_reward for response in responses)
        for responses in prompts
    ]
    return SetScore(
        prompts=len(prompts),
        responses=len(each),
        failed=len(each) - len(rewards),
        mean=mean(rewards) if rewards else None,
        pass_at={
            k: math.fsum(pass_at_k(count, c, k) for c in passed) / len(prompts) for k in shown_ks(count)
        },
        response_length_mean=sum(response.tokens for response in each) / len(each),
        cut_off=sum(response.cut_off for response in each) / len(each),
        unpinned=sum(not response.pinned for response in each),
        parts=means_by_name(response.parts for response in each),
        metrics=means_by_name(response.metrics for response in each),
        first_failure=" ".join(failures[0].split())[:_MOST_WORDS].removeprefix("error: ") if failures else "",
    )
