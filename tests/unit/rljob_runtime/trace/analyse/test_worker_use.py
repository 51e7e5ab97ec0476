"""What workers used, from their samples."""

import pytest

from rljob_runtime.trace.analyse.worker_use import SAMPLES, UseSample, WorkerSamples, WorkerUseBook, on_grid
from tests.support.runtime.events import event


def test_two_samples_as_one():
    """Means by time, the largest of what is held, sums of what is counted."""
    samples = WorkerSamples("fast-0", "fast")
    left = {"cpu": 1.0, "memory_mib": 900, "prefix_hits": 5}
    right = {"cpu": 4.0, "memory_mib": 700, "prefix_hits": 7, "running": 3}
    for _ in range(SAMPLES // 2):
        samples.add(UseSample(0.0, 10.0, left))
        samples.add(UseSample(10.0, 5.0, right))
    assert len(samples.samples) == SAMPLES
    samples.add(UseSample(15.0, 5.0, right))
    assert len(samples.samples) == SAMPLES // 2 + 1
    first = samples.samples[0]
    assert (first.start, first.seconds) == (0.0, 15.0)
    assert first.values == {"cpu": 2.0, "memory_mib": 900, "prefix_hits": 12, "running": 3}
    assert samples.samples[-1] == UseSample(15.0, 5.0, right)


def test_what_is_asked_of_a_worker():
    samples = WorkerSamples("fast-0", "fast")
    for start, values in ((0.0, {"cpu": 1.0}), (10.0, {"cpu": 3.0, "preemptions": 2.0})):
        samples.add(UseSample(start, 10.0, values))
    assert (samples.mean("cpu"), samples.largest("cpu"), samples.total("preemptions")) == (2.0, 3.0, 2.0)
    assert samples.mean("kv_use") is samples.largest("kv_use") is samples.total("kv_use") is None


def test_samples_are_those_of_usage_events():
    book = WorkerUseBook()
    found = [event("idle", 0, 1), event("usage", 0, 5, cpu=2, why="none"), event("usage", 5, 10, cpu=4)]
    book.add_step(found)
    (worker,) = book.workers.values()
    assert (worker.worker, worker.pool, worker.mean("cpu")) == ("fast-0", "fast", 3.0)
    assert worker.samples[0].values == {"cpu": 2.0}


@pytest.mark.parametrize(
    ("times", "expected"),
    [
        ([0.5, 5.0, 6.0, 9.9], [None, 1.0, 1.0, 1.0]),
        # In no sample's time, and in that of one that does not tell it.
        ([11.0, 21.0, 99.0], [None, None, None]),
    ],
)
def test_values_at_given_times(times, expected):
    samples = [UseSample(5.0, 5.0, {"cpu": 1.0}), UseSample(20.0, 5.0, {"running": 1.0})]
    assert on_grid(samples, "cpu", times) == expected
