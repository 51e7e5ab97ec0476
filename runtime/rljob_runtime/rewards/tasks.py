"""Rewards of the built-in tasks.

Guarantees: a perfect response scores 1.0; a better response never scores less; only the text before the stop
token counts. The rewards are dense (each right token counts), so that a random model finds its way.
"""

from rljob_runtime.rewards import RewardInput


def copy(sample: RewardInput, overrun_penalty: float = 0.02) -> float:
    """The prompt's letters again: the part of places that match, less `overrun_penalty` for each token after
    them."""
    return _match(sample.prompt, sample.response, overrun_penalty)


def reverse(sample: RewardInput, overrun_penalty: float = 0.02) -> float:
    """The prompt's letters backwards, scored like `copy`."""
    return _match(sample.prompt[::-1], sample.response, overrun_penalty)


def repeat(sample: RewardInput, times: int | None = None, overrun_penalty: float = 0.02) -> float:
    """The prompt's first letter, `times` times (default: as long as the prompt), scored like `copy`."""
    target = sample.prompt[:1] * (len(sample.prompt) if times is None else times)
    return _match(target, sample.response, overrun_penalty)


def count(sample: RewardInput, scale: float = 8.0) -> float:
    """As many tokens as the prompt has letters, whichever they are: 1 less the error divided by `scale`."""
    # A finished response has a stop token at its end.
    length = len(sample.response_tokens) - int(sample.finished)
    return 1.0 - abs(length - len(sample.prompt)) / scale


def unscored(sample: RewardInput) -> float:
    """0 for every response: for a job that learns from a teacher alone (algorithm.advantage.none)."""
    return 0.0


def _match(target: str, response: str, overrun_penalty: float) -> float:
    matches = sum(wanted == got for wanted, got in zip(target, response, strict=False))
    return matches / max(len(target), 1) - overrun_penalty * max(0, len(response) - len(target))
