"""What is told of failing rewards to who may end the job."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from rljob_runtime.driver.reward_failures import RewardFailures, RewardsNeverWorked
from rljob_runtime.driver.watched_scorer import WatchedScorer
from rljob_runtime.groups.responses import Response
from rljob_runtime.rewards import Score
from rljob_runtime.samples import Prompt

PLACE = "(judge.py:3, in score)"
RESPONSE = "Patient Jane Doe, born 1970"


async def test_what_ends_a_job_has_no_text_of_a_response() -> None:
    """It goes into the RLJob's status and Events."""
    failed = Score(
        0.0,
        f"error: ValueError: could not convert string to float: '{RESPONSE}' {PLACE}",
        failure_outline=f"error: ValueError {PLACE}",
    )

    async def scorer(prompt: Prompt, responses: Sequence[Response]) -> Sequence[Score]:
        return [failed, failed]

    failures = RewardFailures("function m:f", Path("/run/rewards.log"))
    prompt = Prompt(uid=7, epoch=0, row=0, tokens=np.array([1], np.int32))
    assert await WatchedScorer(scorer, failures)(prompt, []) == [failed, failed]
    with pytest.raises(RewardsNeverWorked) as raised:
        failures.to_train(0, [7], last=False)
    assert str(raised.value) == (
        "function m:f failed for all 2 samples of step 1 and has never given a reward. "
        f"The first failure: error: ValueError {PLACE} (more in /run/rewards.log)"
    )


def test_a_failure_without_text_of_a_response_is_told_as_it_is() -> None:
    assert Score(0.0, "timeout after 10 s").told_failure == "timeout after 10 s"
    assert Score(1.0).told_failure is None
