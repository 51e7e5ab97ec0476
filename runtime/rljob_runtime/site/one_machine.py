"""Ray on one machine, for `rljob run`.

Guarantees: always a Ray of this job's own, whatever other Ray runs on the machine; its processes end with
this process, however it ends; a signal to this process's group, as `timeout` and supervisors send it, does
not reach them.
"""

import logging
import os
import signal
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial

import psutil

from rljob_api import RLJob
from rljob_runtime.site.large_imports import large_imports
from rljob_runtime.site.lean_ray import lean_start, replaced
from rljob_runtime.site.ray_end import ray_processes
from rljob_runtime.site.ray_folder import check_ray_folder

_START_ATTEMPTS = 3
"""How often Ray is started before its error is raised."""
_OBJECT_STORE_BYTES = 100 * 2**20
"""Control messages only: samples and weights do not go through the object store, for which Ray would reserve
30 % of the memory."""
_NO_SPARE_WORKERS = {"enable_worker_prestart": False, "prestart_worker_first_driver": False}
"""Each process of a job has settings of its own, and Ray starts it for them: what it starts beforehand, one
process for each CPU, would only take time and memory at the job's start."""
_SHORT_WAITS = {"raylet_client_connect_timeout_milliseconds": 20, "raylet_client_num_connect_attempts": 500}
"""Of the raylet and each process of a job while they connect: 10 s in all, as by default, where they wait 1 s
at a time. The raylet looks for the object store while that starts: too early, where other work takes the
cores."""


@contextmanager
def started(job: RLJob) -> Iterator[Sequence[psutil.Process]]:
    """A local Ray with one unit of the pool's resource for each worker of the job: its own processes.
    Raises `RayFolderUnfit`."""
    check_ray_folder(os.environ, os.getpid())
    prepare()
    with large_imports():
        import ray

    for attempt in range(1, _START_ATTEMPTS + 1):
        try:
            # "local" starts a new Ray even where RAY_ADDRESS names one. The CPUs are those that this process
            # may use.
            with lean_start(), _own_groups(), _same_handler():
                ray.init(
                    address="local",
                    num_cpus=len(os.sched_getaffinity(0)),
                    resources=_resources(job),
                    include_dashboard=False,
                    object_store_memory=_OBJECT_STORE_BYTES,
                    log_to_driver=False,
                    logging_level=logging.ERROR,
                    _system_config={**_NO_SPARE_WORKERS, **_SHORT_WAITS},
                )
            break
        except BaseException as error:
            ray.shutdown()
            # Ray gives its own processes 30 s, which a busy machine may need twice.
            if "timed out during startup" not in str(error) or attempt == _START_ATTEMPTS:
                raise
    hush()
    try:
        yield ray_processes()
    finally:
        ray.shutdown()


@contextmanager
def _own_groups() -> Iterator[None]:
    """The daemons of a Ray that is started meanwhile have process groups of their own, as Ray gives workers:
    only this process knows what is to be written before they end. They stay in its session, by which
    `kill_descendants` tells them."""
    from ray._private import services

    with replaced(services, ConsolePopen=partial(subprocess.Popen, process_group=0)):
        yield


@contextmanager
def _same_handler() -> Iterator[None]:
    """A Ray that is started meanwhile, in the main thread, leaves SIGTERM to whoever handles it. Ray's own
    handlers would wait for its node to be drained, write a stack to the terminal, and end this process with a
    code that says that something broke."""
    from ray._private import utils

    before = signal.getsignal(signal.SIGTERM)
    try:
        # The name may be another in another release of Ray: then its handler is there for a moment.
        with replaced(utils, set_sigterm_handler=lambda _: None):
            yield
    finally:
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
    """Keep Ray's long report of each lost process, or node, from the terminal, from now on; the driver says
    the same in a line."""
    from ray._private import worker

    # A thread of Ray's calls it by this name for each report. In a release with another name it prints them.
    if hasattr(worker, "print_to_stdstream"):
        worker.print_to_stdstream = lambda *_, **__: None


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
