"""Which accelerators workers share."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rljob_api import RLJob
from rljob_runtime.fleet.shared_devices import shared_devices
from tests.support.jobs import job


def wanted(trainer: int = 1, fast: int = 1, heavy: int = 0, per_worker: int = 1) -> RLJob:
    return RLJob.model_validate(
        job(
            {
                "accelerator": "nvidia",
                "pools.trainer.acceleratorsPerWorker": trainer,
                "pools.fastRollout.replicas": fast,
                "pools.heavyRollout.replicas": heavy,
                "pools.heavyRollout.acceleratorsPerWorker": per_worker,
            }
        )
    )


@pytest.mark.parametrize(
    ("made", "ids", "trainer", "fast", "heavy"),
    [
        (wanted(), ["0"], ["0"], ["0"], []),
        # What the trainer leaves goes first, then its own device.
        (wanted(fast=2), ["0", "1"], ["0"], ["1", "0"], []),
        (wanted(fast=4), ["5", "6", "7"], ["5"], ["6", "7", "5", "6"], []),
        (wanted(trainer=2, fast=2), ["0", "1"], ["0", "1"], ["0", "1"], []),
        (wanted(fast=1, heavy=1, per_worker=2), ["0", "1"], ["0"], ["1"], ["0,1"]),
        (wanted(fast=2, heavy=1, per_worker=2), ["0", "1"], ["0"], ["1", "0"], ["0,1"]),
    ],
)
def test_each_worker_has_devices(
    made: RLJob, ids: list[str], trainer: list[str], fast: list[str], heavy: list[str]
):
    found = shared_devices(made, ids, share=True)
    assert found is not None
    for pool, devices in {"trainer": trainer, "fast": fast, "heavy": heavy}.items():
        assert [found.of(pool, number) for number in range(len(devices))] == devices


@pytest.mark.parametrize(
    ("made", "devices", "share"),
    [(wanted(), 2, True), (wanted(fast=2), 1, False), (RLJob.model_validate(job({})), 0, True)],
    ids=["enough", "not allowed", "cpu"],
)
def test_nothing_is_shared(made: RLJob, devices: int, share: bool):
    assert shared_devices(made, [str(number) for number in range(devices)], share) is None


@given(trainer=st.integers(1, 4), fast=st.integers(1, 8), heavy=st.integers(0, 4), devices=st.integers(1, 8))
def test_workers_are_spread(trainer: int, fast: int, heavy: int, devices: int):
    ids = [f"GPU-{number}" for number in range(devices)]
    found = shared_devices(wanted(trainer, fast, heavy), ids, share=True)
    if found is None:
        assert trainer + fast + heavy <= devices
        return
    everybody: Counter[str] = Counter(dict.fromkeys(ids, 0))
    for pool, workers in {"trainer": trainer, "fast": fast, "heavy": heavy}.items():
        own = Counter(dict.fromkeys(ids, 0))
        own.update(found.of(pool, number) for number in range(workers))
        assert max(own.values()) - min(own.values()) <= 1
        everybody += own
    assert max(everybody.values()) - min(everybody[each] for each in ids) <= 1
