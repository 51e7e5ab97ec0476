"""How much of an accelerator a worker or rank gets where a machine has fewer than the job asks for. Pure."""

import math

from rljob_api import RLJob


def device_share(job: RLJob, available: int, share: bool) -> float:
    """The part of each accelerator that a worker asks for: 1, or less where `share` is allowed and the job
    asks for more than the `available` ones. Rounded down to hundredths, so that the parts add up."""
    pools = job.spec.pools
    asked = sum(
        pool.replicas * pool.accelerators_per_worker
        for pool in (pools.trainer, pools.fast_rollout, pools.heavy_rollout)
    )
    # A job on CPUs asks for accelerators of no kind, whatever accelerator its machine may have.
    if not share or job.spec.accelerator == "cpu" or asked <= available:
        return 1.0
    workers_of_a_device = math.ceil(asked / available)
    return math.floor(100 / workers_of_a_device) / 100
