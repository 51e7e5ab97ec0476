"""Ray on one machine, for `rljob run`.

Guarantees: always a Ray of this job's own, whatever other Ray runs on the machine; its processes end with
this process, however it ends.
"""

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager

from rljob_api import RLJob

_OBJECT_STORE_BYTES = 100 * 2**20
"""Control messages only: sample data and weights do not go through the object store."""


@contextmanager
def started(job: RLJob) -> Iterator[None]:
    """A local Ray with one unit of the pool's resource for each worker of the job."""
    os.environ.setdefault("RAY_DEDUP_LOGS", "0")
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    # Ray announces on the terminal, at each start, that it authenticates its own processes.
    logging.getLogger("ray").setLevel(logging.ERROR)
    import ray

    pools = job.spec.pools
    ray.init(
        address="local",
        num_cpus=len(os.sched_getaffinity(0)),
        resources={
            "trainer": float(pools.trainer.replicas * max(1, pools.trainer.accelerators_per_worker)),
            "fast_rollout": float(pools.fast_rollout.replicas),
            "heavy_rollout": float(pools.heavy_rollout.replicas),
        },
        include_dashboard=False,
        object_store_memory=_OBJECT_STORE_BYTES,
        log_to_driver=False,
        logging_level=logging.ERROR,
    )
    try:
        yield
    finally:
        ray.shutdown()
