"""Ray on one machine, for `rljob run`.

Guarantees: always a Ray of this job's own, whatever other Ray runs on the machine; its processes end with
this process, however it ends.
"""

import logging
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager

from rljob_api import RLJob
from rljob_runtime.site.large_imports import large_imports

_START_ATTEMPTS = 3
"""How often Ray is started before its error is raised."""
_OBJECT_STORE_BYTES = 100 * 2**20
"""Control messages only: samples and weights do not go through the object store, for which Ray would reserve
30 % of the memory."""
_NO_SPARE_WORKERS = {"enable_worker_prestart": False, "prestart_worker_first_driver": False}
"""Each process of a job has settings of its own, and Ray starts it for them: what it starts beforehand, one
process for each CPU, would only take time and memory at the job's start."""
_UNUSED = ("start_monitor", "start_log_monitor", "start_api_server")
"""Methods of Ray's node that start what a job on one machine has no use for: the autoscaler, what sends lines
of logs to the driver, and the dashboard's server. Each is a Python process, 2 s of a core together at the
start of every job, and no argument of `ray.init` leaves them out."""

_SET_HANDLER = "set_sigterm_handler"
"""Ray's function that takes SIGTERM for itself."""


@contextmanager
def started(job: RLJob) -> Iterator[None]:
    """A local Ray with one unit of the pool's resource for each worker of the job."""
    prepare()
    with large_imports():
        import ray

    for attempt in range(1, _START_ATTEMPTS + 1):
        try:
            # "local" starts a new Ray even where RAY_ADDRESS names one. The CPUs are those that this process
            # may use.
            with few_processes(), _same_handler():
                ray.init(
                    address="local",
                    num_cpus=len(os.sched_getaffinity(0)),
                    resources=_resources(job),
                    include_dashboard=False,
                    object_store_memory=_OBJECT_STORE_BYTES,
                    log_to_driver=False,
                    logging_level=logging.ERROR,
                    _system_config=dict(_NO_SPARE_WORKERS),
                )
            break
        except BaseException as error:
            ray.shutdown()
            # Ray gives its own processes 30 s, which a busy machine may need twice.
            if "timed out during startup" not in str(error) or attempt == _START_ATTEMPTS:
                raise
    hush()
    try:
        yield
    finally:
        ray.shutdown()


@contextmanager
def few_processes() -> Iterator[None]:
    """A Ray that is started meanwhile has none of the processes that a job does not use."""
    from ray._private.node import Node

    # They are Ray's own and may have other names in another release: then it starts what it starts.
    kept = {name: getattr(Node, name) for name in _UNUSED if hasattr(Node, name)}
    for name in kept:
        setattr(Node, name, lambda *_, **__: None)
    try:
        yield
    finally:
        for name, method in kept.items():
            setattr(Node, name, method)


@contextmanager
def _same_handler() -> Iterator[None]:
    """A Ray that is started meanwhile, in the main thread, leaves SIGTERM to whoever handles it. Ray's own
    handlers would wait for its node to be drained, write a stack to the terminal, and end this process with a
    code that says that something broke."""
    from ray._private import utils

    before = signal.getsignal(signal.SIGTERM)
    # The name is Ray's own, and may be another in another release: then its handler is there for a moment.
    kept = getattr(utils, _SET_HANDLER, None)
    if kept is not None:
        setattr(utils, _SET_HANDLER, lambda _: None)
    try:
        yield
    finally:
        if kept is not None:
            setattr(utils, _SET_HANDLER, kept)
        # Ray's library has a handler too, of which Python does not know.
        signal.signal(signal.SIGTERM, before)


def prepare() -> None:
    """Set what Ray reads when it is imported and started, and what its processes have from this one."""
    os.environ.setdefault("RAY_DEDUP_LOGS", "0")
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    # Actors that ask Ray for no device keep the variables that say which ones they may see.
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    # The tokenizers library would warn, in each process that is forked after its first use.
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    # Ray announces on the terminal, at each start, that it authenticates its own processes.
    logging.getLogger("ray").setLevel(logging.ERROR)


def hush() -> None:
    """Once Ray is started: keep its long report of each lost process from the terminal; the driver says the
    same in a line."""
    from ray._private.ray_logging import global_worker_stdstream_dispatcher

    global_worker_stdstream_dispatcher.remove_handler("ray_print_logs")


def _resources(job: RLJob) -> dict[str, float]:
    """One unit of a pool's resource for each process of the pool."""
    pools = job.spec.pools
    ranks = pools.trainer.replicas * pools.trainer.accelerators_per_worker
    units = {
        "trainer": ranks,
        "fast_rollout": pools.fast_rollout.replicas,
        "heavy_rollout": pools.heavy_rollout.replicas,
    }
    return {name: float(count) for name, count in units.items() if count}


def devices() -> int:
    """Accelerators that Ray found."""
    import ray

    found = ray.cluster_resources()
    return int(found.get("GPU", 0) + found.get("NPU", 0))
