"""Does a right response pass, as pass@k counts it? Pure: from what a reward gave when it was tried."""

from collections.abc import Sequence


def not_passing(answers: Sequence[float], others: Sequence[float], pass_reward: float) -> str | None:
    """What to look at where the rewards of the `answers` themselves, given as responses, are higher than
    those of all `others`, and below `pass_reward`; None where one passes, or the answers are nothing better:
    a reward may want a form that they do not have."""
    if not answers or not others:
        return None
    best = max(answers)
    if best >= pass_reward or best <= max(others):
        return None
    return (
        f"is {pass_reward:g}, and of the responses that the reward was tried on the best, which is an answer "
        f"itself, got {best:g}: should a right response get no more, none passes and pass@k stays 0. Set it "
        "to what a right response gets at least"
    )
