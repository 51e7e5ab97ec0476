"""Whole runs in the modes that the examples and fault tests leave out: each trains every prompt once."""

from typing import Any

import pytest

from rljob_runtime.trace.record.evaluation_log import EVALUATION_SAMPLES_FILE, read_evaluations
from rljob_runtime.trace.record.metrics_log import read_metrics
from rljob_runtime.trace.record.sample_log import read_samples
from tests.support.runtime.runs import PROMPTS, manifest, running

STEPS = 6
EVALUATION = {
    "sets": [{"name": "held_out", "data": {"generated": {"task": "copy", "rows": 5}, "maxPromptTokens": 8}}],
    "everyVersions": 2,
    "samplesPerPrompt": 2,
    "sampling": {"temperature": 0.0},
}

MODES: dict[str, dict[str, Any]] = {
    "pull": {"async": {"maxStaleness": 1, "weightSync": {"pull": {}}}},
    "push over tcp": {"async": {"maxStaleness": 1, "weightSync": {"push": {}, "transport": "tcp"}}},
    "pull over tcp": {"async": {"maxStaleness": 1, "weightSync": {"pull": {}, "transport": "tcp"}}},
    "abort and resubmit": {
        "async": {"maxStaleness": 2, "weightSync": {"push": {"inFlight": "abort"}}},
        "evaluation": EVALUATION,
    },
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
    evaluations = read_evaluations(run.folder)
    assert [(line.step, line.version) for line in evaluations] == (
        [(0, 0), (2, 2), (4, 4), (6, 6)] if "evaluation" in MODES[mode] else []
    )
    for line in evaluations:
        score = line.sets["held_out"]
        assert (score.prompts, score.responses, score.failed, score.unpinned) == (5, 10, 0, 0)
    said: dict[tuple[int, int], set[str]] = {}
    for sample in read_samples(run.folder, EVALUATION_SAMPLES_FILE).rows:
        assert sample.first_version == sample.last_version == sample.step
        said.setdefault((sample.step, sample.row), set()).add(sample.response)
    assert len(said) == 5 * len(evaluations)
    assert all(len(texts) == 1 for texts in said.values()), "at temperature 0 both responses are the same"


@pytest.mark.timeout(300)
def test_two_trainer_ranks_train_every_prompt_once(tmp_path):
    file, _ = manifest(tmp_path, STEPS, pools={"trainer": {"replicas": 2}, "fastRollout": {"replicas": 1}})
    with running(file) as run:
        assert run.end(250) == 0, run.log.read_text()
    rows = read_metrics(run.folder / "metrics.jsonl").rows
    assert sorted(uid for row in rows for uid in row["uids"]) == list(range(STEPS * PROMPTS))
