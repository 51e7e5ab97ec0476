"""How long a response may become."""

import numpy as np

from rljob_runtime.data.forced_lengths import ForcedLengths
from rljob_runtime.groups.state import RolloutSettings


def test_the_most_tokens_of_a_response_are_those_of_the_job_or_those_that_are_given() -> None:
    assert RolloutSettings(2, 100, seed=0).most_tokens(1, 0) == 100
    given = RolloutSettings(2, 100, 0, ForcedLengths(np.array([[1, 2], [3, 4], [5, 6]], np.int32)))
    assert [given.most_tokens(uid, index) for uid in (0, 1, 2) for index in (0, 1)] == [1, 2, 3, 4, 5, 6]
