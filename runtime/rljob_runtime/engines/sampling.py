"""How an RLJob has its engines draw tokens. Pure."""

from rljob_api import RLJob
from rljob_api.evaluation import EvaluationSampling
from rljob_api.rollout import Rollout
from rljob_runtime.engines.protocol import Sampling


def sampling_of(job: RLJob, stop_token_ids: tuple[int, ...]) -> Sampling:
    """How the job's engines draw tokens."""
    rollout = job.spec.training.rollout
    return Sampling(rollout.drawn_at, rollout.top_p, rollout.top_k, stop_token_ids)


def evaluation_sampling(rollout: Rollout, wanted: EvaluationSampling, stops: tuple[int, ...]) -> Sampling:
    """How tokens of an evaluation are drawn; `stops` are the tokens that end a response."""
    return Sampling(
        rollout.drawn_at if wanted.temperature is None else wanted.temperature,
        rollout.top_p if wanted.top_p is None else wanted.top_p,
        rollout.top_k if wanted.top_k is None else wanted.top_k,
        stops,
    )
