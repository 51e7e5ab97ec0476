"""Whole runs in the modes that the examples and fault tests leave out: each trains every prompt once."""

import copy
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rljob_api import RLJob
from rljob_api.model import CharacterTokenizer as CharacterOptions
from rljob_runtime.data.tokenizer import CharacterTokenizer
from rljob_runtime.trace.record.evaluation_log import EVALUATION_SAMPLES_FILE, read_evaluations
from rljob_runtime.trace.record.metrics_log import read_metrics
from rljob_runtime.trace.record.sample_log import read_samples
from rljob_runtime.trainer.model import save_initial_model
from tests.support.runtime.runs import ONE_ENGINE, PROMPTS, Run, manifest, running
from tests.support.runtime.tiny_models import sharpened

STEPS = 6
EVALUATION = {
    "sets": [{"name": "held_out", "data": {"generated": {"task": "copy", "rows": 5}, "maxPromptTokens": 8}}],
    "everyVersions": 2,
    "samplesPerPrompt": 2,
    "sampling": {"temperature": 0.0},
}

MODES: dict[str, dict[str, Any]] = {
    "push over tcp": {
        "async": {"maxStaleness": 1, "weightSync": {"push": {}, "transport": "tcp"}},
        "pools": ONE_ENGINE,
    },
    "pull over tcp, by two trainer ranks, from a teacher alone": {
        "async": {"maxStaleness": 1, "weightSync": {"pull": {}, "transport": "tcp"}},
        "pools": {"trainer": {"replicas": 2}, **ONE_ENGINE},
        "algorithm": {"advantage": {"none": {}}, "distillation": {"teacher": {"path": "teacher"}}},
        "reward": {"function": "rljob_runtime.rewards.tasks:unscored"},
    },
    "abort and resubmit": {
        "pools": ONE_ENGINE,
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


def teacher(document: dict[str, Any], folder: Path) -> None:
    """A model of the job's shape with other weights, which is surer of its next token."""
    changed = copy.deepcopy(document)
    changed["spec"]["training"]["seed"] = 1
    tokenizer = CharacterTokenizer(CharacterOptions().alphabet)
    save_initial_model(RLJob.model_validate(changed), tokenizer.vocabulary_size, 0, 1, 2, folder)
    tokenizer.save_pretrained(folder)
    sharpened(folder, 8)


def assert_every_prompt_once(run: Run, bound: float) -> None:
    rows = read_metrics(run.folder / "metrics.jsonl").rows
    assert sorted(uid for row in rows for uid in row["uids"]) == list(range(STEPS * PROMPTS))
    assert max(row["staleness_max"] for row in rows) <= -(-bound // 1)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("mode", MODES)
def test_a_run_trains_every_prompt_once_within_its_bound(tmp_path, mode):
    file, document = manifest(tmp_path, STEPS, **MODES[mode])
    taught = "distillation" in MODES[mode].get("algorithm", {})
    if taught:
        teacher(document, tmp_path / "teacher")
    with running(file) as run:
        assert run.end(250) == 0, run.log.read_text()
    assert_every_prompt_once(run, document["spec"]["training"]["async"]["maxStaleness"])
    assert (run.folder / "report.html").exists()
    rows = read_metrics(run.folder / "metrics.jsonl").rows
    assert all(("teacher_kl" in row) is taught for row in rows)
    if taught:
        assert rows[0]["teacher_kl"] > 0.1
        # Nothing but the teacher gives a gradient.
        assert all(row["reward_mean"] == 0 and row["grad_norm"] > 0.01 for row in rows)
    evaluations = read_evaluations(run.folder)
    assert [(line.step, line.version) for line in evaluations] == (
        [(0, 0), (2, 2), (4, 4), (6, 6)] if "evaluation" in MODES[mode] else []
    )
    for line in evaluations:
        score = line.sets["held_out"]
        assert (score.prompts, score.responses, score.failed, score.unpinned) == (5, 10, 0, 0)
    shown = "Evaluation of held_out, after step 6" in (run.folder / "report.html").read_text()
    assert shown == bool(evaluations)
    said: dict[tuple[int, int], set[str]] = {}
    for sample in read_samples(run.folder, EVALUATION_SAMPLES_FILE).rows:
        assert sample.first_version == sample.last_version == sample.step
        said.setdefault((sample.step, sample.row), set()).add(sample.response)
    assert len(said) == 5 * len(evaluations)
    assert all(len(texts) == 1 for texts in said.values()), "at temperature 0 both responses are the same"


@pytest.fixture
def other_ray(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Another Ray on this machine, and an address in the environment at which there is none."""
    code = "import ray, time; ray.init(address='local', num_cpus=1); print('up', flush=True); time.sleep(600)"
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as ray:
        try:
            assert ray.stdout is not None
            assert ray.stdout.readline().strip() == "up"
            monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:1")
            yield
        finally:
            ray.kill()


@pytest.mark.timeout(400)
def test_evaluations_keep_an_engine_to_themselves_and_another_ray_does_not_matter(
    tmp_path: Path, other_ray: None
) -> None:
    """To a job of two engines that pull."""
    pools = {"fastRollout": {"replicas": 2}}
    training = {
        "async": {"maxStaleness": 1, "weightSync": {"pull": {}}},
        "evaluation": {**EVALUATION, "engines": {"fastRollout": 1}},
    }
    file, _ = manifest(tmp_path, STEPS, pools, **training)
    with running(file) as run:
        assert run.end(350) == 0, run.log.read_text()
    assert_every_prompt_once(run, bound=1)
    lines = read_evaluations(run.folder)
    # With the last version nothing is trained beside it.
    assert [(line.version, line.engines) for line in lines] == [(0, 1), (2, 1), (4, 1), (6, 0)]
    assert [line.sets["held_out"].unpinned for line in lines] == [0] * len(lines)
    samples = read_samples(run.folder, EVALUATION_SAMPLES_FILE).rows
    assert all(each.first_version == each.last_version == each.step for each in samples)
    for version in (0, 2, 4):
        assert len({each.engine for each in samples if each.step == version}) == 1
