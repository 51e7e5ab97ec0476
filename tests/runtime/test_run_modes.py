"""Whole runs in the modes that the examples and fault tests leave out: each trains every prompt once."""

from typing import Any

import pytest

from rljob_runtime.trace.record.metrics_log import read_metrics
from tests.support.runtime.runs import PROMPTS, manifest, running

STEPS = 6

MODES: dict[str, dict[str, Any]] = {
    "pull": {"async": {"maxStaleness": 1, "weightSync": {"pull": {}}}},
    "push over tcp": {"async": {"maxStaleness": 1, "weightSync": {"push": {}, "transport": "tcp"}}},
    "pull over tcp": {"async": {"maxStaleness": 1, "weightSync": {"pull": {}, "transport": "tcp"}}},
    "abort and resubmit": {"async": {"maxStaleness": 2, "weightSync": {"push": {"inFlight": "abort"}}}},
    "wait, in verl's terms": {
        "async": {
            "maxStaleness": 0.5,
            "stepsPerVersion": 2,
            "weightSync": {"push": {"inFlight": "wait"}},
        },
        "schedule": {"epochs": 1, "promptsPerBatch": PROMPTS // 2, "batchesPerStep": 2},
        "algorithm": {"policyLoss": {"decoupledClip": {}}, "kl": {}},
    },
}


@pytest.mark.timeout(300)
@pytest.mark.parametrize("mode", MODES)
def test_a_run_trains_every_prompt_once_within_its_bound(tmp_path, mode):
    file, document = manifest(tmp_path, STEPS, **MODES[mode])
    with running(file) as run:
        assert run.end(250) == 0, run.log.read_text()
    rows = read_metrics(run.folder / "metrics.jsonl").rows
    assert sorted(uid for row in rows for uid in row["uids"]) == list(range(STEPS * PROMPTS))
    bound = document["spec"]["training"]["async"]["maxStaleness"]
    assert max(row["staleness_max"] for row in rows) <= -(-bound // 1)
    assert (run.folder / "report.html").exists()


@pytest.mark.timeout(300)
def test_two_trainer_ranks_train_every_prompt_once(tmp_path):
    file, _ = manifest(tmp_path, STEPS, pools={"trainer": {"replicas": 2}, "fastRollout": {"replicas": 1}})
    with running(file) as run:
        assert run.end(250) == 0, run.log.read_text()
    rows = read_metrics(run.folder / "metrics.jsonl").rows
    assert sorted(uid for row in rows for uid in row["uids"]) == list(range(STEPS * PROMPTS))
