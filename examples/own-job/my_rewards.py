"""The reward of job.yaml."""

from rljob_runtime.rewards import RewardInput, RewardResult


def colour(sample: RewardInput, brevity: float = 0.05) -> RewardResult:
    """1 for the colour that is asked for, a half for another one that is right too; each further word costs
    `brevity`."""
    words = sample.response.lower().split()
    right = sample.answer in words
    also = any(word in words for word in sample.fields["also"])
    return RewardResult(
        parts={
            "correct": 1.0 if right else 0.5 if also else 0.0,
            "brief": -brevity * max(0, len(words) - 1),
        },
        metrics={"words": len(words), "right_word_first": words[0] == sample.answer if words else None},
    )
