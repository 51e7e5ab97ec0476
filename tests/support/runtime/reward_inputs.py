"""What a reward function is given, for tests."""

from typing import Any

import numpy as np

from rljob_runtime.rewards import RewardInput


def reward_input(
    response: str = "ab", prompt: str = "ab", answer: str | None = "ab", fields: dict[str, Any] | None = None
) -> RewardInput:
    return RewardInput(
        prompt=prompt,
        response=response,
        answer=answer,
        prompt_tokens=np.zeros(len(prompt), np.int32),
        response_tokens=np.zeros(len(response) + 1, np.int32),
        finished=True,
        fields=fields or {},
    )
