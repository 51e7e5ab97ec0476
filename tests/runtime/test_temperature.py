"""The temperature that a job asks for is the one that vLLM draws at, and at which the trainer scores."""

import pytest
from vllm import SamplingParams

from rljob_runtime.engines.sampling import sampling_of
from rljob_runtime.trainer.sampling_distribution import Distribution
from tests.support.runtime.trainer_ranks import trainer_job


@pytest.mark.parametrize("asked", [1e-6, 0.005, 0.01, 0.7, 2.0])
def test_all_have_the_same(asked: float) -> None:
    """vLLM raises a low one by itself."""
    job = trainer_job(rollout={"temperature": asked})
    given = sampling_of(job, (2,)).temperature
    assert SamplingParams(temperature=given).temperature == given
    assert Distribution.of(job.spec.training.rollout).temperature == given
    assert given == pytest.approx(max(asked, 0.01))
