"""RLJobs that break one rule each, as changes to the small one of `jobs`: one file for each subject."""

from tests.support.broken_jobs import (
    engines,
    model_and_data,
    objective,
    pools_and_ranks,
    rollout_and_schedule,
)
from tests.support.broken_jobs.form import BrokenJobs

_PARTS = (pools_and_ranks, engines, rollout_and_schedule, objective, model_and_data)

BROKEN_RULES: BrokenJobs = {name: broken for part in _PARTS for name, broken in part.BROKEN.items()}
assert len(BROKEN_RULES) == sum(len(part.BROKEN) for part in _PARTS), "two jobs of one name"
