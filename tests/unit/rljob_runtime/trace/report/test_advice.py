"""Which evidence leads to which advice."""

import json
import re
import shlex
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rljob_api import RLJob
from rljob_runtime.manifest.load import read
from rljob_runtime.simulate.compare import Spread
from rljob_runtime.simulate.site import Sizes
from rljob_runtime.trace.analyse.analysis import Analysis, analyse_run
from rljob_runtime.trace.forecast.sizing import Proposal, Unfinished
from rljob_runtime.trace.report.advice import Evidence, advise
from rljob_runtime.trace.report.evidence import evidence_of
from rljob_runtime.trace.report.section_time import time_spent
from rljob_runtime.trace.report.sizing_advice import size_advice
from tests.support.jobs import job
from tests.support.runtime.synthetic_run import MANIFEST, Job, write_run


def settings(evidence: Evidence) -> list[str]:
    return [advice.setting for advice in advise(evidence)]


BALANCED = Evidence(trainer_idle=0.05, engine_idle={"fast": 0.05}, engines_idle=0.05)
CUT_OFF = replace(BALANCED, limited_share=0.8, limited_lately=0.8, mixed_groups=200, ended_better=0.95)
"""Most responses are cut off, and earn less than the others."""


@pytest.mark.parametrize(
    ("evidence", "expected"),
    [
        (Evidence(), []),
        (BALANCED, []),
        (Evidence(trainer_idle=0.6, engine_idle={"fast": 0.1}, engines_idle=0.1),
         ["pools.fastRollout.replicas"]),
        (Evidence(trainer_idle=0.6, engine_idle={"fast": 0.1, "heavy": 0.02}, engines_idle=0.08),
         ["pools.heavyRollout.replicas"]),
        (Evidence(trainer_idle=0.4, engine_idle={"fast": 0.4}, engines_idle=0.4, admission_share=0.35),
         ["training.async.maxStaleness"]),
        (Evidence(trainer_idle=0.4, engine_idle={"fast": 0.4}, engines_idle=0.4, admission_share=0.1), []),
        (Evidence(trainer_idle=0.02, engine_idle={"fast": 0.4}, engines_idle=0.4, admission_share=0.4),
         ["pools.trainer.replicas"]),
        (replace(BALANCED, engine_sync=0.15), ["training.async.stepsPerVersion"]),
        (replace(BALANCED, evaluation_share=0.15), ["training.evaluation.everyVersions"]),
        (replace(BALANCED, evaluation_share=0.05), []),
        (replace(BALANCED, limited_share=0.05, limited_seconds=0.3, median_seconds=1, p99_seconds=8),
         ["training.rollout.maxResponseTokens"]),
        (replace(BALANCED, limited_share=0.9, limited_seconds=0.95, median_seconds=1, p99_seconds=1.1),
         []),
        (CUT_OFF, ["training.rollout.maxResponseTokens"]),
        (replace(CUT_OFF, limited_lately=0.4), []),
        (replace(CUT_OFF, mixed_groups=0, ended_better=0.0), []),
        (replace(CUT_OFF, mixed_groups=19, ended_better=1.0), []),
        (replace(CUT_OFF, ended_better=0.6), []),
        (replace(CUT_OFF, limited_share=0.2, limited_seconds=0.5, median_seconds=1, p99_seconds=8),
         ["training.rollout.maxResponseTokens"]),
        (replace(BALANCED, reward_share=0.4), ["training.reward.workers"]),
        (replace(BALANCED, trainer_save=0.2), ["training.checkpoint.everySteps"]),
        (replace(BALANCED, failed_share=0.05), ["training.reward.function"]),
        (replace(BALANCED, slow_workers=[("fast-3", "node-7", 2.0)]), ["pools"]),
        (replace(BALANCED, equal_share=1.0), ["training.reward"]),
        (replace(BALANCED, equal_share=0.6), ["training.data"]),
        (replace(BALANCED, equal_share=0.4), []),
        (replace(BALANCED, equal_share=0.9, collapsed=True), ["training.optimizer.learningRate"]),
        (replace(BALANCED, equal_share=0.4, collapsed=True), []),
    ],
    ids=[
        "no data", "balanced", "generation-bound", "the busiest pool", "bound", "both idle otherwise",
        "training-bound", "weight updates", "evaluations", "short evaluations",
        "long tail", "all at the limit",
        "most cut off", "cut off no longer", "of that length by design", "few to compare with",
        "worth as much at the limit", "both a tail and most cut off", "reward", "checkpoints",
        "failing rewards", "slow engine", "every reward alike", "most rewards alike", "some rewards alike",
        "collapsed", "sure of answers that differ",
    ],
)  # fmt: skip
def test_rules(evidence: Evidence, expected: list[str]) -> None:
    assert settings(evidence) == expected


@pytest.mark.parametrize(
    ("accelerator", "change"),
    [
        ("nvidia", "raise it from 2; about 5 would keep the trainer fed if each adds as much"),
        ("cpu", "raise it, if the machine has cores to spare"),
    ],
)
def test_advice_starts_from_the_settings_of_the_job(tmp_path: Path, accelerator: str, change: str) -> None:
    path = tmp_path / "job.yaml"
    path.write_text(MANIFEST.replace("accelerator: cpu", f"accelerator: {accelerator}"))
    (advice,) = advise(
        Evidence(
            trainer_idle=0.5, engine_idle={"fast": 0.05, "heavy": 0.1}, engines_idle=0.07, job=read(path).job
        )
    )
    assert advice.change == change
    assert "at most 2.0 x as fast" in advice.reason


@pytest.mark.parametrize(
    ("workers", "change"),
    [
        ({"fast": 2, "heavy": 1}, "raise it from 2; about 5 would keep the trainer fed if each adds as much"),
        (
            {"fast": 6, "heavy": 1},
            "raise it from 6; how far, a run whose pools had other sizes before does not tell",
        ),
        (
            {"fast": 2, "heavy": 4},
            "raise it from 2; how far, a run whose pools had other sizes before does not tell",
        ),
    ],
)
def test_advice_on_engines_starts_from_the_size_that_a_pool_was_scaled_to(
    tmp_path: Path, workers: dict[str, int], change: str
) -> None:
    path = tmp_path / "job.yaml"
    path.write_text(MANIFEST.replace("accelerator: cpu", "accelerator: nvidia"))
    (advice,) = advise(
        Evidence(
            trainer_idle=0.5, engine_idle={"fast": 0.05, "heavy": 0.1}, engine_workers=workers,
            engines_idle=0.07, job=read(path).job,
        )
    )  # fmt: skip
    assert advice.change == change


@pytest.mark.parametrize(
    ("entropy", "rewards", "collapsed"),
    [
        ([2.0, 0.1, 0.1], [0.03, 0.0, 0.0], True),
        ([2.0, 0.1, 0.1], [0.03, 0.8, 1.0], False),
        ([2.0, 0.1, 1.0], [0.03, 0.0, 0.0], False),
        ([2.0, None, 0.1], [0.03, None, 0.03], True),
        ([None], [None], False),
        ([], [], False),
    ],
    ids=["collapsed", "solved", "recovered", "a step without numbers", "no number", "no step"],
)
def test_a_collapsed_policy(
    tmp_path: Path, entropy: list[float | None], rewards: list[float | None], collapsed: bool
) -> None:
    run = write_run(tmp_path / "run", Job(steps=2, groups=1, samples=2, fast=1, trainers=1, limit=60))
    analysis = analyse_run(run)
    analysis.metrics.rows[:] = [
        {"step": step, "entropy": left, "reward_mean": reward}
        for step, (left, reward) in enumerate(zip(entropy, rewards, strict=True))
    ]
    assert evidence_of(analysis, None).collapsed == collapsed


@pytest.mark.parametrize(
    ("algorithm", "told"),
    [
        ({}, True),
        ({"advantage": {"none": {}}, "distillation": {"teacher": {"path": "t"}}}, False),
        ({"distillation": {"teacher": {"path": "t"}}}, False),
        ({"advantage": {"reinforcePlusPlus": {}}}, False),
        ({"advantage": {"reinforcePlusPlus": {"baseline": True}}}, True),
        ({"advantage": {"custom": {"function": "mine:best"}}}, False),
    ],
    ids=["grpo", "teacher alone", "teacher beside rewards", "whitened", "against the group", "its own"],
)
def test_equal_rewards_are_told_where_they_teach_nothing(algorithm: dict[str, Any], told: bool) -> None:
    spec = RLJob.model_validate(job({"training.algorithm": algorithm}))
    assert bool(advise(Evidence(equal_share=1.0, job=spec))) == told


def test_a_limit_that_cuts_off_most_is_to_be_raised_and_not_lowered() -> None:
    spec = RLJob.model_validate(job({"training.rollout.maxResponseTokens": 12}))
    tail = {"limited_share": 0.2, "limited_seconds": 0.5, "median_seconds": 1.0, "p99_seconds": 8.0}
    (advice,) = advise(replace(CUT_OFF, job=spec, **tail))
    assert advice.change.startswith("raise it from 12 where responses break off")
    assert advice.reason.startswith(
        "80 % of the newest responses are cut off at the limit; those that end by"
    )
    assert "earn more in 95 % of the 200 groups" in advice.reason


@pytest.mark.parametrize(
    ("shares", "lately"),
    [([0.0] * 18 + [0.5, 0.7], 0.6), ([0.9, None, 0.1], 0.1), ([], 0.0)],
    ids=["the newest tenth", "steps without the share", "none recorded"],
)
def test_how_many_were_cut_off_lately(tmp_path: Path, shares: list[float | None], lately: float) -> None:
    run = write_run(tmp_path / "run", Job(steps=2, groups=1, samples=2, fast=1, trainers=1, limit=60))
    analysis = analyse_run(run)
    analysis.metrics.rows[:] = [{"step": step, "cut_off": share} for step, share in enumerate(shares)]
    assert evidence_of(analysis, None).limited_lately == pytest.approx(lately)


def test_a_slow_engine_is_named_with_its_host() -> None:
    (advice,) = advise(Evidence(slow_workers=[("fast-1", "node-1", 1.6), ("fast-3", "node-7", 2.0)]))
    assert advice.change == "look at fast-3 on node-7 (1 more in the table of workers)"


def without_older_rows(run: Path) -> None:
    """Three of four rows of metrics.jsonl go, as they do of a long run."""
    lines = (run / "metrics.jsonl").read_text().splitlines()
    rows = [json.loads(line) for line in lines]
    kept = [{**row, "began": rows[at - 1]["time"]} if at else row for at, row in enumerate(rows)][::4]
    (run / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in kept))


def without_older_events(run: Path) -> None:
    """The events of half of the steps go, as they do where they take more room than the job gives them."""
    for step in range(80):
        shutil.rmtree(run / "events" / f"step_{step}")


def at_a_time(analysis: Analysis) -> list[float]:
    """How many requests ran at a time in each pool of engines, by the tables of pools and of events."""
    page = time_spent(analysis, {})
    pools = re.findall(r"<td>(?:fast|heavy)</td>(?:(?!</tr>).)*>([\d.]+)</td></tr>", page, re.DOTALL)
    events = re.findall(
        r"<td>(?:fast|heavy)</td><td>generate</td>(?:<td[^>]*>[^<]*</td>){3}<td[^>]*>([\d.]+)<", page
    )
    return [float(found) for found in (*pools, *events)]


@pytest.mark.parametrize("taken", [without_older_rows, without_older_events])
def test_shares_of_time_stay_what_they_are_where_rows_or_events_of_older_steps_are_gone(
    tmp_path: Path, taken: Callable[[Path], None]
) -> None:
    run = write_run(tmp_path / "run", Job(steps=160, groups=4, samples=4, fast=1, trainers=1, limit=60))
    whole = analyse_run(run)
    taken(run)
    rest = analyse_run(run)
    share = evidence_of(whole, None).admission_share
    assert 0.2 < share < 1
    assert evidence_of(rest, None).admission_share == pytest.approx(share, rel=0.05)
    expected = at_a_time(whole)
    assert len(expected) == 4
    assert at_a_time(rest) == pytest.approx(expected, rel=0.05)


NOW, THEN = Sizes(2, 2, 1), Sizes(1, 4, 0)


def proposed(manifest: dict[str, Any] | None = None, found: Proposal | Unfinished | None = None) -> str:
    spec = RLJob.model_validate(job(manifest)).spec
    found = found or Proposal(NOW, THEN, 5, Spread(0.243, 0.021), 6, 35.71, 36.53)
    advice = size_advice(found, spec, Path("runs/a"))
    assert advice is not None
    return f"{advice.setting} {advice.change} | {advice.reason}"


def test_sizes_are_advised_with_their_gain_its_error_and_how_right_the_simulator_is() -> None:
    text = proposed()
    assert text.startswith(
        "pools change trainer.replicas from 2 to 1; fastRollout.replicas from 2 to 4; "
        "heavyRollout.replicas from 1 to 0: the same 5 accelerators |"
    )
    assert "24 % (± 2 %, standard error of 6 workloads) more samples a second" in text
    assert text.endswith("35.7 samples a second, and 36.5 were measured. It takes KV caches for large enough")
    known = proposed(found=Proposal(NOW, THEN, 5, Spread(0.243, 0.021), 6, 35.71, 36.53, True))
    assert known.endswith("and 36.5 were measured")


def test_a_bound_that_is_in_the_way_is_named() -> None:
    assert "fastRollout.replicas from 2 to 4, with its maxReplicas" in proposed(
        {"pools.fastRollout": {"replicas": 2, "maxReplicas": 3}}
    )


def test_a_lower_bound_that_is_in_the_way_is_named() -> None:
    heavy = {"replicas": 1, "minReplicas": 1, "maxReplicas": 4}
    assert "heavyRollout.replicas from 1 to 0, with its minReplicas: " in proposed(
        {"pools.heavyRollout": heavy}
    )


def test_where_the_time_did_not_suffice_the_command_is_named() -> None:
    text = proposed(found=Unfinished(64))
    assert "`rljob trace fit runs/a > measured.yaml`" in text and "--size 64`" in text


def test_the_command_can_be_pasted_where_the_folder_has_a_space() -> None:
    spec = RLJob.model_validate(job()).spec
    advice = size_advice(Unfinished(64), spec, Path("my runs/a"))
    assert advice is not None
    fit, simulate = (shlex.split(command) for command in re.findall("`([^`]+)`", advice.change))
    assert fit[3] == "my runs/a"
    assert simulate[2] == "my runs/a/job.yaml" and simulate[6] == "my runs/a/lengths.jsonl"


def test_nothing_proposed_is_no_advice() -> None:
    assert size_advice(None, RLJob.model_validate(job()).spec, Path("a")) is None
