"""The batch that verl's trainer is measured with holds the tokens, positions and advantages of our groups."""

import numpy as np
import pytest
import torch

from rljob_runtime.samples import Group, Sample, Span
from tests.bench.trainer_step_shapes import SHAPES, make_groups
from tests.bench.verl_step_rows import padded


def _sample(tokens: list[int], reward: float | None) -> Sample:
    drawn = np.array(tokens, np.int32)
    log_probs = -drawn.astype(np.float32)
    failure = "timeout after 10 s" if reward is None else None
    return Sample(drawn, log_probs, (Span(0, 0, len(drawn)),), "length", reward or 0.0, failure)


def _groups() -> list[Group]:
    first = (_sample([7, 8, 9], 1.0), _sample([6], 0.0))
    second = (_sample([4, 5], 0.5), _sample([3], None))
    prompts = np.array([1], np.int32), np.array([2, 1], np.int32)
    return [Group(0, 0, 0, prompts[0], first, 0), Group(1, 0, 1, prompts[1], second, 0)]


EXPECTED = {
    "prompts": [[0, 1], [0, 1], [2, 1], [2, 1]],
    "responses": [[7, 8, 9], [6, 0, 0], [4, 5, 0], [3, 0, 0]],
    "input_ids": [[0, 1, 7, 8, 9], [0, 1, 6, 0, 0], [2, 1, 4, 5, 0], [2, 1, 3, 0, 0]],
    "attention_mask": [[0, 1, 1, 1, 1], [0, 1, 1, 0, 0], [1, 1, 1, 1, 0], [1, 1, 1, 0, 0]],
    "response_mask": [[1, 1, 1], [1, 0, 0], [1, 1, 0], [1, 0, 0]],
    "old_log_probs": [[-7.0, -8.0, -9.0], [-6.0, 0.0, 0.0], [-4.0, -5.0, 0.0], [-3.0, 0.0, 0.0]],
}


@pytest.mark.parametrize("name", EXPECTED)
def test_prompts_end_and_responses_begin_in_one_column(name):
    assert padded(_groups())[name].tolist() == EXPECTED[name]


def test_positions_count_from_a_prompt_s_first_token():
    made = padded(_groups())
    rows = zip(made["position_ids"], made["attention_mask"].bool(), strict=True)
    counted = [positions[mask].tolist() for positions, mask in rows]
    assert counted == [[0, 1, 2, 3], [0, 1], [0, 1, 2, 3], [0, 1, 2]]


def test_advantages_are_a_group_s_own_and_0_beside_its_tokens():
    made = padded(_groups())["advantages"]
    # Two rewards, a distance of 1 apart: mean 0.5, sample standard deviation 0.7071.
    torch.testing.assert_close(made[0], torch.full((3,), 0.70711), atol=1e-5, rtol=0)
    torch.testing.assert_close(made[1], torch.tensor([-0.70711, 0.0, 0.0]), atol=1e-5, rtol=0)
    assert not made[2:].any()


@pytest.mark.parametrize("step", [0, 3])
def test_as_many_tokens_as_our_trainer_trains(step):
    groups = make_groups(SHAPES["tiny"], step)
    made = padded(groups)
    samples = [(group.prompt, sample) for group in groups for sample in group.samples]
    assert int(made["attention_mask"].sum()) == sum(len(p) + len(s.tokens) for p, s in samples)
    assert int(made["response_mask"].sum()) == sum(len(s.tokens) for _, s in samples)
