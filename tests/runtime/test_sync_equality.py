"""Bound 0 is synchronous training, bit for bit."""

import pytest

from rljob_api import RLJob
from rljob_runtime.trace.record.metrics_log import read_metrics
from tests.support.runtime.reference_sync import synchronous_losses
from tests.support.runtime.runs import manifest, running

STEPS = 20


@pytest.mark.timeout(400)
def test_bound_zero_equals_the_straight_loop(tmp_path):
    file, document = manifest(
        tmp_path,
        steps=STEPS,
        **{"async": {"maxStaleness": 0}, "optimizer": {"learningRate": 0.001}},
    )
    with running(file) as run:
        assert run.end(300) == 0, run.log.read_text()
    losses = [row["loss"] for row in read_metrics(run.folder / "metrics.jsonl").rows]
    job = RLJob.model_validate(document)
    assert losses == synchronous_losses(job, run.folder / "initial_model", tmp_path, STEPS)
    assert len(set(losses)) > STEPS // 2, "losses that do not change prove nothing"
