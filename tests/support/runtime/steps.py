"""What a trained step reports, made up."""

from rljob_runtime.trainer.step_metrics import MaskedTokens, PassMetrics, StepMetrics
from rljob_runtime.view.progress import Header

HEADER = Header("copy", "cpu", {"fast": 1}, "torch", "tiny", 1)
TOKENS = 1000
"""Response tokens of each step."""


def masked_tokens(share: float) -> MaskedTokens:
    return MaskedTokens(
        tokens=share, responses=share / 2, oldest_trained=1, shortest_quarter=0.0, second_quarter=0.0,
        third_quarter=0.0, longest_quarter=share,
    )  # fmt: skip


def pass_metrics(seconds: float, first: bool = False) -> PassMetrics:
    expected, r_squared = (None, None) if first else (1.1 * seconds, 0.9)
    compiling = 0.5 * seconds if first else 0.0
    return PassMetrics(
        seconds=seconds, expected_seconds=expected, compile_seconds=compiling, imbalance=1.25,
        r_squared=r_squared,
    )  # fmt: skip


def step_metrics(
    step: int, reward: float = 0.5, parity: float | None = None, masked: float | None = None
) -> StepMetrics:
    return StepMetrics(
        step=step, loss=0.1, policy_loss=0.1, kl=0.0, teacher_kl=0.0, entropy=1.0, grad_norm=0.5,
        learning_rate=1e-3, clip_fraction=0.0, importance_weight_mean=1.0, reward_mean=reward,
        reward_std=0.1, reward_min=0.0, reward_p10=0.1, reward_median=reward, reward_p90=0.9,
        reward_max=1.0, equal_groups=0.25,
        reward_parts={"correct": reward}, reward_metrics={"depth": 2.0}, reward_values_failed=0,
        tokens=2 * TOKENS,
        response_tokens=TOKENS, samples=8, failed=0, response_length_mean=125.0, response_length_max=200,
        cut_off=0.125,
        staleness_mean=0.0, staleness_max=0, staleness_histogram={0: 8}, mixed_share=0.0,
        masked=None if masked is None else masked_tokens(masked), parity_max=parity,
        parity_mean=parity, seconds={"forward": 0.1},
        passes=pass_metrics(0.1),
    )  # fmt: skip
