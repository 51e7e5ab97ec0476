"""What is told and recorded of the start, when training begins."""

import logging

from rljob_runtime.driver.job_inputs import JobInputs
from rljob_runtime.driver.parts import Parts
from rljob_runtime.trace.analyse.worker_starts import READY, ready_sentence
from rljob_runtime.trace.record.worker_start import record_start

log = logging.getLogger(__name__)


def tell_ready(inputs: JobInputs, parts: Parts, step: int, now: float) -> None:
    """Training begins with `step`: say in driver.log where the time until now went, and record the driver's
    own part of it. `now`: seconds since the epoch."""
    own = inputs.start.parts
    began = min((each.start for each in own), default=now)
    words = ready_sentence(now - began, list(parts.starts.values()))
    log.info("%s", words)
    record_start(parts.events, step, own)
    parts.events.add("start", step, began, now - began, part=READY, since=began, words=words)
