"""What a training step reports."""

import msgspec


class MaskedTokens(msgspec.Struct, kw_only=True):
    """What a step did not train of its responses with a reward, because of its age
    (`async.staleTokens: mask`). Shares are of tokens, 0 to 1."""

    tokens: float
    """Of the tokens of all responses."""
    responses: float
    """Share of the responses of which no token was trained."""
    oldest_trained: int
    """Weight versions between the oldest token that was trained and its training."""
    shortest_quarter: float
    """Of the tokens of the shortest quarter of the step's responses. Where the quarters differ, training sees
    fewer tokens of responses of one length than of another's."""
    second_quarter: float
    third_quarter: float
    longest_quarter: float


class PassMetrics(msgspec.Struct, kw_only=True):
    """How long a step's forward and backward passes took, and what was expected of them."""

    seconds: float
    """Of the rank that took longest; sum over the step's updates."""
    expected_seconds: float | None
    """The same by the cost model, as it was before the step; None before anything was measured."""
    compile_seconds: float
    """Those of the passes in which torch compiled something, of the rank where that took longest."""
    imbalance: float
    """`seconds` by the mean over ranks of what they worked: 1 where no rank waits for another."""
    r_squared: float | None
    """Share of the variance of passes' seconds that the cost model explains, at its newest fit; None before
    it."""


class StepMetrics(msgspec.Struct, kw_only=True):
    """The metrics of one step, over all its batches and ranks. Means over tokens weigh every trained response
    token the same."""

    step: int
    loss: float
    """What was minimised: mean over the step's optimizer updates."""
    policy_loss: float
    kl: float
    """Estimated divergence from the reference model, without its coefficient; 0 without one."""
    teacher_kl: float
    """Estimated divergence from the teacher, in nats, without its coefficient; 0 without one."""
    entropy: float | None
    """Entropy of the sampling distribution, in nats; mean over trained tokens. None where it is not computed.
    """
    grad_norm: float
    """Norm of the gradient before clipping; mean over the step's updates."""
    learning_rate: float
    """Learning rate of the step's last update."""
    clip_fraction: float
    """Share of tokens whose gradient clipping stopped."""
    importance_weight_mean: float
    reward_mean: float
    """Mean over the responses that have a reward."""
    reward_std: float
    reward_min: float
    reward_p10: float
    """A tenth of the rewards is below it; between two rewards in proportion."""
    reward_median: float
    reward_p90: float
    reward_max: float
    equal_groups: float
    """Share of the step's groups whose rewards are all equal, so that they teach nothing
    (`groups.filter.all_equal`)."""
    reward_parts: dict[str, float]
    """Of each part of the rewards the mean over the responses that have it, by its name."""
    reward_metrics: dict[str, float]
    """The same of what reward functions measured besides."""
    reward_values_failed: int
    """Parts and metrics that responses with a reward lack: not returned though earlier responses had them,
    no finite numbers, or beyond the number of names that are kept."""
    tokens: int
    """Prompt and response tokens that went through the model."""
    response_tokens: int
    """Tokens of responses that were trained."""
    samples: int
    """Responses in the step's groups."""
    failed: int
    """Responses without a reward; they are not trained."""
    response_length_mean: float
    response_length_max: int
    cut_off: float
    """Share of the responses that ended at `rollout.maxResponseTokens`, not by themselves."""
    staleness_mean: float
    """Weight versions between a response's first token and its training."""
    staleness_max: int
    staleness_histogram: dict[int, int]
    """Responses by staleness."""
    mixed_share: float
    """Share of responses whose tokens come from more than one weight version."""
    masked: MaskedTokens | None
    """What was not trained for its age; None where steps wait, so that there is nothing."""
    parity_max: float | None
    """Largest |engine - trainer| log-probability over tokens that engines drew with the weights that the
    step began with; None where there are none."""
    parity_mean: float | None
    seconds: dict[str, float]
    """Seconds spent in each kind of event since the step before, on rank 0: a publication and a checkpoint
    count to the step that follows them."""
    passes: PassMetrics
