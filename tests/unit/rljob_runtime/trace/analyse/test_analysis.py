"""The analysis of whole runs, written through the real writers by `tests.support.runtime.synthetic_run`."""

import re
from pathlib import Path

import pytest

from rljob_runtime.trace.analyse.analysis import analyse, analyse_run
from rljob_runtime.trace.record.event_log import EVENTS_FOLDER, EventLog
from rljob_runtime.trace.record.metrics_log import Metrics
from rljob_runtime.trace.record.start_log import Start
from rljob_runtime.trace.report.evidence import evidence_of
from rljob_runtime.trace.report.section_time import time_spent, trainer_layers
from tests.support.runtime.events import event, generated, windows
from tests.support.runtime.synthetic_run import EPOCH, Job, write_run
from tests.support.simulated.simulated_job import Scenario, SimulatedJob


def test_a_run_is_accounted_for(tmp_path: Path) -> None:
    job = Job(steps=20)
    analysis = analyse_run(write_run(tmp_path, job))
    assert [(pool.pool, pool.role, len(pool.workers)) for pool in analysis.pools] == [
        ("trainer", "trainer", 2), ("fast", "engine", 2), ("heavy", "engine", 1), ("driver", "other", 1),
    ]  # fmt: skip
    assert analysis.requests.seconds.count == job.steps * job.groups * job.samples
    tokens = sum(row["tokens"] for row in analysis.metrics.rows)
    assert analysis.requests.lengths.total == tokens
    assert sum(step.seconds.count for step in analysis.requests.by_step.values()) == job.steps * 64
    for pool in analysis.pools:
        assert sum(pool.overall.values()) == pytest.approx(1.0)
    trainer = analysis.pools[0]
    trained = sum(row["step_seconds"] for row in analysis.metrics.rows)
    busy = 1 - trainer.overall["idle"]
    # After each step but the last, whose end is the run's: the weights; after the tenth: a checkpoint.
    trained = trained * 0.975 + 19 * 0.05 + 0.2
    assert busy == pytest.approx(trained / analysis.seconds, rel=0.005)
    assert (analysis.superseded, analysis.unreadable, analysis.lost_seconds) == (0, 0, 0)


def test_shares_of_one_pool_are_at_most_all_of_its_time(tmp_path: Path) -> None:
    """Also of ranks that record as idle what they publish and save in, and the time before the first step."""
    run = write_run(tmp_path, Job(steps=20, train_seconds=20, restart_at=12))
    ranks = [EventLog(run / "events", 100 + rank, f"trainer-{rank}", "trainer") for rank in range(2)]
    for window in analyse_run(run).windows:
        for rank in ranks:
            rank.add("idle", window.step, window.start, window.seconds / 2)
            rank.flush()
    analysis = analyse_run(run)
    for pool in (*analysis.with_role("trainer"), *analysis.with_role("engine")):
        shares = analysis.event_shares(pool)
        assert {"trainer": "optimizer", "engine": "generate"}[pool.role] in shares
        assert 0.9 < sum(shares.values()) <= 1 + 1e-9
        for by_step in analysis.event_shares_by_step(pool):
            assert sum(by_step.values()) <= 1 + 1e-9
    layers = trainer_layers(analysis, analysis.with_role("trainer")[0])
    for index in range(20):
        assert sum(layer.values[index] or 0.0 for layer in layers) == pytest.approx(100)


def test_the_step_with_the_hanging_request_stands_out_and_names_it(tmp_path: Path) -> None:
    analysis = analyse_run(write_run(tmp_path, Job(steps=40, slow_step=23)))
    assert [anomaly.step for anomaly in analysis.anomalies] == [23]
    slowest = analysis.requests.slowest()[0]
    assert slowest.seconds > 40 and slowest.uid == 23 * 8
    assert analysis.requests.by_step[23].slowest.startswith("184.0 on ")
    assert 23 in [detail.window.step for detail in analysis.details]


def test_work_that_a_restart_threw_away_is_not_counted_twice(tmp_path: Path) -> None:
    job = Job(steps=20, restart_at=12)
    analysis = analyse_run(write_run(tmp_path, job))
    assert len(analysis.windows) == 20
    assert analysis.requests.seconds.count == job.steps * 64
    assert analysis.superseded > 0
    assert analysis.lost_seconds >= 20
    heavy = analysis.with_role("engine")[1]
    assert heavy.by_step[6]["work"] > 0.5, "what was generated for step 7 during step 6 was thrown away"
    assert len(analysis.event_uses["trainer", "optimizer"].by_step) == 20
    assert analysis.event_uses["trainer", "optimizer"].seconds.count == 40


def test_a_response_that_a_kill_ended_is_another_one_when_it_is_generated_again() -> None:
    """It had moved in a step that counts; the run was resumed an hour later, after that step."""
    starts = [Start(0.0, 0, "new"), Start(3600.0, 1, "resumed", stopped=20.0)]
    moved = generated("7.0#1", 1.0, 5.0, "abort", "fast-0")
    again = [generated("7.0#2", 3601.0, 3604.0, "abort", "fast-0"), generated("7.0#3", 3604.0, 3610.0)]
    found = analyse(Metrics(), starts, windows(10.0, 10.0), [], [(0, [moved]), (1, again)]).requests
    assert found.seconds.count == 1 and found.seconds.largest == pytest.approx(9.0)


def test_engines_that_left_weigh_by_the_time_that_they_were_there() -> None:
    """A fast pool of three engines that are never idle, of which two leave after a tenth of the run; a heavy
    engine that is always idle."""
    found = [
        *(generated(f"{place}.0#{place}", 0.0, 100.0, worker="fast-0") for place in range(4)),
        *(generated(f"{place}.1#{place}", 0.0, 10.0, worker=f"fast-{place}") for place in (1, 2)),
        *(event("weight_load", time, time + 1e-6, worker)
          for worker in ("fast-0", "heavy-0") for time in (0.0, 30.0, 60.0)),
        *(event("weight_load", 0.0, 1e-6, f"fast-{place}") for place in (1, 2)),
        generated("9.0#9", 0.0, 1e-6, worker="heavy-0"),
    ]  # fmt: skip
    analysis = analyse(Metrics(), [], windows(100.0), [], [(0, found)])
    assert evidence_of(analysis, None).engines_idle == pytest.approx(100 / 220, abs=0.01)
    page = time_spent(analysis, {})
    # Four requests for 100 s and two for 10 s, in the 120 s of engines.
    assert re.search(r"<td>fast</td><td[^>]*>3</td>.*?<td class=n>3.5</td></tr>", page)
    assert re.search(r"<td>fast</td><td>generate</td><td class=n>6</td>.*?<td class=n>3.5</td>", page)


def test_truncated_files_cost_their_last_line_only(tmp_path: Path) -> None:
    write_run(tmp_path, Job(steps=5))
    whole = analyse_run(tmp_path).requests.seconds.count
    files = sorted((tmp_path / "events").glob("step_*/worker_1.jsonl"))
    for file in files:
        file.write_bytes(file.read_bytes()[:-20])
    metrics = tmp_path / "metrics.jsonl"
    metrics.write_bytes(metrics.read_bytes()[:-5])
    analysis = analyse_run(tmp_path)
    assert analysis.unreadable == len(files) and analysis.metrics.unreadable == 1
    assert 0 < whole - analysis.requests.seconds.count <= len(files)


def test_without_metrics_the_events_tell_the_steps(tmp_path: Path) -> None:
    write_run(tmp_path, Job(steps=5))
    (tmp_path / "metrics.jsonl").unlink()
    analysis = analyse_run(tmp_path)
    assert [window.step for window in analysis.windows] == list(range(6)), (
        "step 5 holds the last weight update"
    )
    assert analysis.pools


def test_an_empty_folder_has_an_empty_analysis(tmp_path: Path) -> None:
    analysis = analyse_run(tmp_path)
    assert (analysis.windows, analysis.pools, analysis.details, analysis.seconds) == ([], [], [], 0)


def test_the_responses_of_a_rollout_are_told_apart_and_their_attempts_joined(tmp_path: Path) -> None:
    """By the names that the real rollout loop gives its requests."""
    scenario = Scenario(steps=6, in_flight="abort")
    job = SimulatedJob(scenario, events_folder=tmp_path / "events").run()
    requests = analyse_run(tmp_path).requests
    samples = [sample for group in job.trained for sample in group.samples]
    assert requests.seconds.count == len(samples) == 6 * 8 * 4
    assert requests.lengths.total == sum(len(sample.tokens) for sample in samples)
    assert sum(sketch.count for attempts, sketch in requests.by_attempts.items() if attempts > 1) > 0
    names = {request.name for request in requests.slowest()}
    assert names <= {f"{group.uid}.{index}" for group in job.trained for index in range(4)}


def test_evidence_of_evaluations_that_training_waits_for(tmp_path: Path) -> None:
    run = write_run(tmp_path, Job(steps=10))
    steps = analyse_run(run).seconds
    waits = EventLog(run / EVENTS_FOLDER, 7, "driver", "driver")
    for step in range(2, 10, 2):
        waits.add("evaluation_wait", step, EPOCH + step, 0.05 * steps)
    # After the last step nothing is held up any more.
    waits.add("evaluation_wait", 10, EPOCH + 1000, 500.0)
    waits.flush()
    assert evidence_of(analyse_run(run), None).evaluation_share == pytest.approx(0.2)


def test_evidence_of_a_slow_engine(tmp_path: Path) -> None:
    analysis = analyse_run(write_run(tmp_path, Job(steps=20, slow_engine=4.0)))
    ((worker, host, factor),) = evidence_of(analysis, None).slow_workers
    assert worker == "fast-0" and host and 3 < factor < 5


@pytest.mark.parametrize(
    ("job", "trainer_idle", "engines_idle"),
    [(Job(steps=20, train_seconds=0.2), "high", "low"), (Job(steps=20, train_seconds=20), "low", "high")],
    ids=["generation-bound", "training-bound"],
)
def test_evidence_tells_who_waits(tmp_path: Path, job: Job, trainer_idle: str, engines_idle: str) -> None:
    evidence = evidence_of(analyse_run(write_run(tmp_path, job)), None)
    assert evidence.trainer_idle is not None
    for share, expected in ((evidence.trainer_idle, trainer_idle), (evidence.engines_idle, engines_idle)):
        assert share > 0.6 if expected == "high" else share < 0.3
