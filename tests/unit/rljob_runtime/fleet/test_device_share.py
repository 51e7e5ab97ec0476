"""Parts of accelerators."""

import pytest

from rljob_api import RLJob
from rljob_runtime.fleet.device_share import device_share
from tests.support.jobs import job


@pytest.mark.parametrize(
    ("fast", "available", "share", "part"),
    [(1, 2, True, 1.0), (1, 1, True, 0.5), (2, 1, True, 0.33), (2, 2, True, 0.66), (2, 1, False, 1.0)],
)
def test_parts_add_up_to_what_is_there(fast, available, share, part):
    wanted = RLJob.model_validate(job({"accelerator": "nvidia", "pools.fastRollout.replicas": fast}))
    assert device_share(wanted, available, share) == part
