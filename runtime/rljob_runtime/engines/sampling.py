"""How an RLJob has its engines draw tokens. Pure."""

from rljob_api import RLJob
from rljob_runtime.engines.protocol import Sampling


def sampling_of(job: RLJob, stop_token_ids: tuple[int, ...]) -> Sampling:
    """How the job's engines draw tokens."""
    rollout = job.spec.training.rollout
    return Sampling(rollout.temperature, rollout.top_p, rollout.top_k, stop_token_ids)
