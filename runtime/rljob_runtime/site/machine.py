"""This machine, started for a job of `rljob run` while it is not known yet whether the job is right.

Guarantees: what was started is ended once, by whoever comes first: the job that ran on it, or whoever started
it; an error of the start is kept for the job, whose log has it then.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import psutil

from rljob_api import RLJob
from rljob_runtime.site import one_machine as local_ray
from rljob_runtime.site.mps import kernels_at_once


@dataclass
class Machine:
    """A Ray of the job's own, and what workers share its GPUs by."""

    end: Callable[[], None]
    """Ends all of it; a second call does nothing."""
    ready: float
    """When it was started, in seconds since the epoch."""
    turns: str | None = None
    """Why workers that share a GPU take turns, in a line; None where they do not."""
    failure: Exception | None = None
    """Why it did not start."""
    processes: Sequence[psutil.Process] = ()
    """Ray's own, without which no actor goes on."""
    early: Mapping[str, Any] = field(default_factory=dict)
    """Actors that were begun on it for workers, by their names (`fleet/early_workers.py`)."""


@contextmanager
def started_machine(job: RLJob, share: bool) -> Iterator[Machine]:
    """Start it in this thread, with which Ray's processes end; must be the main one. `share`: workers may
    share accelerators."""
    with ExitStack() as stack:
        turns, failure = None, None
        processes: Sequence[psutil.Process] = ()
        try:
            if share and job.spec.accelerator == "nvidia":
                turns = stack.enter_context(kernels_at_once())
            processes = stack.enter_context(local_ray.started(job))
        except Exception as error:  # noqa: BLE001 - raised where the job opens its site
            failure = error
        yield Machine(stack.close, time.time(), turns, failure, processes)
