"""Parts of accelerators."""

import pytest

from rljob_api import RLJob
from rljob_runtime.fleet.device_share import device_share
from tests.support.jobs import job


@pytest.mark.parametrize(
    ("fast", "available", "share", "part"),
    [
        (1, 2, True, 1.0),
        (1, 1, True, 0.5),
        (2, 1, True, 0.33),
        (2, 2, True, 0.5),
        (4, 3, True, 0.5),
        (6, 3, True, 0.33),
        (2, 1, False, 1.0),
    ],
)
def test_every_worker_finds_its_part_on_one_device(fast, available, share, part):
    """Three workers on two devices get halves: of two thirds, only one would fit on each."""
    wanted = RLJob.model_validate(job({"accelerator": "nvidia", "pools.fastRollout.replicas": fast}))
    assert device_share(wanted, available, share) == part


def test_a_job_on_cpus_shares_nothing():
    assert device_share(RLJob.model_validate(job({"accelerator": "cpu"})), 0, share=True) == 1.0
