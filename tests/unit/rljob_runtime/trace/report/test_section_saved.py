"""What the report says of the tail's cost."""

import pytest

from rljob_runtime.trace.analyse.length_duration import LengthDuration
from rljob_runtime.trace.analyse.requests import Attempt, Request
from rljob_runtime.trace.analyse.reward_by_length import RewardByLength
from rljob_runtime.trace.analyse.what_if import TailSums
from rljob_runtime.trace.report.section_saved import (
    done_sentence,
    length_sentence,
    limit_sentence,
    over_sampling_sentence,
)
from tests.support.runtime.events import event


def request(uid: int, seconds: float, length: int, name: str = "") -> Request:
    return Request(uid, name or f"{uid}.0", 0, [Attempt("fast-0", 0.0, seconds, length, "stop")], length)


@pytest.fixture
def tail() -> TailSums:
    """Of a step of 96 responses 80 were done in 4 of 6 seconds; of one of 84 in 4 of 10."""
    found = TailSums()
    early = [request(uid, 4.0, 400) for uid in range(80)]
    found.add_step(early + [request(uid, 6.0, 600) for uid in range(80, 96)])
    found.add_step(early + [request(uid, 10.0, 1000) for uid in range(80, 84)])
    return found


def test_the_tail_in_sentences(tail: TailSums):
    assert done_sentence(tail) == (
        "80 % of a step's responses were done in 50 % of the time that all of them took (8 s for a step): "
        "the last 20 % took the other 50 %."
    )
    assert over_sampling_sentence(tail).startswith(
        "Over-sampling by 20 % (begin so many more groups, and give up the last ones when a step has enough) "
        "would have saved up to 50 % of that time, for up to 20 % more tokens"
    )
    saved = (
        "A limit of 609 response tokens (the longest response has 1,000) would have saved up to 24 % of that "
        "time, and cut 2.2 % of the responses."
    )
    assert limit_sentence(tail, RewardByLength()) == saved
    rewards = RewardByLength()
    scored = event("reward", 0, 1, "driver", uid=1, rewards=[0.5, 0.25])
    rewards.add_step([request(1, 4.0, 400), request(1, 10.0, 1000, "1.1")], [scored])
    worth = " Those had a mean reward of 0.25, the others 0.50."
    assert limit_sentence(tail, rewards) == saved + worth


def test_no_limit_is_named_where_it_would_cut_many():
    found = TailSums()
    found.add_step([request(uid, 4.0, 400) for uid in range(20)])
    assert limit_sentence(found, RewardByLength()).startswith(
        "No lower limit of response tokens is worth a try: the longest"
    )


@pytest.mark.parametrize(
    ("pairs", "sentence"),
    [
        (
            [(10, 1.0), (20, 2.0), (30, 3.0)],
            "A token more took 100 ms; lengths explain 100 % of how much durations differ: their lengths "
            "alone are what makes responses slow.",
        ),
        (
            [(10, 1.0), (20, 3.0), (30, 2.0)],
            "A token more took 50 ms; lengths explain 25 % of how much durations differ: the rest is how "
            "they waited, and what ran beside them.",
        ),
        ([(10, 1.0)], "Responses do not differ enough in length to say what a token takes."),
    ],
)
def test_lengths_and_durations(pairs, sentence):
    found = LengthDuration()
    found.add([request(0, took, length) for length, took in pairs])
    assert length_sentence(found) == sentence
