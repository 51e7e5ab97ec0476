"""When is it told that right responses may not pass?"""

import pytest

from rljob_runtime.manifest.pass_reward import not_passing


@pytest.mark.parametrize(
    ("answers", "others", "pass_reward", "told"),
    [
        ([0.95], [0.0, -0.3], 1.0, True),
        ([0.5, 0.95], [0.0], 1.0, True),
        ([1.0], [0.0], 1.0, False),
        ([0.95], [0.0], 0.9, False),
        # What passes is a response of another form, which is not known here.
        ([0.0], [0.0], 1.0, False),
        ([-0.05], [0.0, -0.3], 1.0, False),
        ([], [0.0], 1.0, False),
        ([0.95], [], 1.0, False),
    ],
)
def test_what_is_told(answers: list[float], others: list[float], pass_reward: float, told: bool) -> None:
    assert (not_passing(answers, others, pass_reward) is not None) == told


def test_in_words() -> None:
    assert not_passing([0.95], [0.0], 1.0) == (
        "is 1, and of the responses that the reward was tried on the best, which is an answer itself, got "
        "0.95: should a right response get no more, none passes and pass@k stays 0. Set it to what a right "
        "response gets at least"
    )
