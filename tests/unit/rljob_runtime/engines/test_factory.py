"""How much room for adapters an engine is built with."""

import pytest

from rljob_api import RLJob
from rljob_runtime.engines.factory import adapter_room
from rljob_runtime.engines.vllm_compat import AdapterRoom
from tests.support.jobs import job


@pytest.mark.parametrize(
    ("staleness", "running"), [(0.0, 2), (0.5, 3), (1.0, 3), (4.0, 6), (6.0, 8), (1000.0, 8)]
)
def test_room_for_the_versions_that_run_beside_each_other(staleness: float, running: int) -> None:
    changes = {"training.adapter": {"rank": 12}, "training.async.maxStaleness": staleness}
    assert adapter_room(RLJob.model_validate(job(changes))) == AdapterRoom(12, running, kept=16)


def test_a_job_without_an_adapter_needs_none() -> None:
    with pytest.raises(ValueError, match="no adapter"):
        adapter_room(RLJob.model_validate(job()))
