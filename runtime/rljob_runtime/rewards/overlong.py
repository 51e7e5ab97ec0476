"""DAPO's soft punishment of overlong responses (arXiv:2503.14476, eq. 13)."""

from rljob_api.data import OverlongShaping


def overlong_punishment(length: int, max_response_tokens: int, shaping: OverlongShaping) -> float:
    """What is added to the reward of a response of `length` tokens: 0 up to
    `max_response_tokens - buffer_tokens`, then falling in a line to `-penalty_factor` at
    `max_response_tokens`."""
    over = length - (max_response_tokens - shaping.buffer_tokens)
    return min(0.0, -over / shaping.buffer_tokens * shaping.penalty_factor)
