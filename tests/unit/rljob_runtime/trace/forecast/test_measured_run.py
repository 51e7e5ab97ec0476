"""What a run tells the simulator, and which runs tell it nothing."""

import re
from dataclasses import replace
from pathlib import Path

import pytest

from rljob_api.job import Spec
from rljob_runtime.data.length_trace import LENGTHS_FILE
from rljob_runtime.manifest.load import read
from rljob_runtime.trace.analyse.analysis import Analysis, analyse_run
from rljob_runtime.trace.forecast import measured_run as module
from rljob_runtime.trace.forecast.measured_run import (
    as_asked,
    first_step,
    measured_rate,
    measured_run,
)
from rljob_runtime.trace.record.event_log import EVENTS_FOLDER, EventLog
from tests.support.runtime.synthetic_run import MANIFEST, Job, write_run

ON_GPUS = MANIFEST.replace("accelerator: cpu", "accelerator: nvidia").replace(
    "pools: {", "pools: {trainer: {replicas: 2}, "
)


def run_of(folder: Path, job: Job, manifest: str = ON_GPUS) -> tuple[Path, Spec, Analysis]:
    run = write_run(folder, job)
    (run / "job.yaml").write_text(manifest)
    return run, read(run / "job.yaml").job.spec, analyse_run(run)


def test_a_run_tells_its_costs_its_lengths_and_its_speed(tmp_path: Path) -> None:
    found = measured_run(*run_of(tmp_path, Job(steps=20, by_length=True)))
    assert found is not None
    # Each token takes 10 ms, whatever runs beside.
    cost = found.assumptions.engines.fast
    assert cost.fixed_seconds + 8 * cost.seconds_per_request == pytest.approx(0.01, rel=0.1)
    assert found.assumptions.engines.heavy is None and found.knows_heavy, "all engines are alike"
    assert found.assumptions.weight_sync_seconds == pytest.approx(0.063)
    assert found.trace.tokens.shape == (160, 8)
    assert not found.knows_trainer, "its steps take as long whatever they train"


@pytest.mark.parametrize(
    ("fast", "heavy", "each", "knows_fast"),
    [(0, 2, 2, False), (0, 2, 1, True), (2, 1, 2, True)],
    ids=["heavy alone", "heavy alone, of the same kind", "both"],
)
def test_it_knows_the_engines_of_pools_that_it_had(
    tmp_path: Path, fast: int, heavy: int, each: int, knows_fast: bool
) -> None:
    pool = f"{{replicas: {heavy}, acceleratorsPerWorker: {each}}}"
    pools = f"fastRollout: {{replicas: {fast}}}, heavyRollout: {pool}"
    manifest = re.sub("fastRollout: .*}}", pools + "}", ON_GPUS)
    found = measured_run(*run_of(tmp_path, Job(24, fast, heavy, by_length=True), manifest))
    assert found is not None and found.knows_heavy and found.knows_fast is knows_fast
    engines = found.assumptions.engines
    cost = engines.fast if knows_fast else engines.heavy
    assert cost is not None
    assert cost.fixed_seconds + 8 * cost.seconds_per_request == pytest.approx(0.01, rel=0.15)


@pytest.mark.parametrize(("said", "known"), [(500_000, 500_000), (3, None), (None, None)])
def test_it_knows_how_much_a_cache_holds_where_engines_said_so(
    tmp_path: Path, said: int | None, known: int | None
) -> None:
    run, spec, analysis = run_of(tmp_path, Job(steps=20, by_length=True))
    EventLog(run / EVENTS_FOLDER, 1, "fast-0", "fast").has_cache(said)
    found = measured_run(run, spec, analysis)
    assert found is not None and found.assumptions.engines.fast.kv_tokens == known


@pytest.mark.parametrize(
    "job",
    [Job(steps=6, by_length=True), Job(steps=20), Job(steps=20, by_length=True, fast=3)],
    ids=["too short", "without lengths", "with another pool than asked for"],
)
def test_a_run_that_does_not_suffice_tells_nothing(tmp_path: Path, job: Job) -> None:
    assert measured_run(*run_of(tmp_path, job)) is None


def test_the_lengths_of_another_job_tell_nothing(tmp_path: Path) -> None:
    run, spec, analysis = run_of(tmp_path, Job(steps=20, by_length=True))
    file = run / LENGTHS_FILE
    file.write_text(file.read_text().replace('"samples_per_prompt":8', '"samples_per_prompt":9'))
    assert measured_run(run, spec, analysis) is None


def test_workers_on_the_processors_of_one_machine_slow_each_other(tmp_path: Path) -> None:
    _, spec, analysis = run_of(tmp_path, Job(steps=3), MANIFEST)
    assert not as_asked(spec, analysis)
    for pool in analysis.pools:
        for number, worker in enumerate(pool.workers):
            worker.host = f"{pool.pool}-{number}"
    assert as_asked(spec, analysis)


def test_a_pool_that_was_made_smaller_on_the_way_was_not_as_asked_all_the_time(tmp_path: Path) -> None:
    _, spec, analysis = run_of(tmp_path, Job(steps=3))
    assert as_asked(spec, analysis)
    analysis.with_role("engine")[0].workers[0].left = True
    assert not as_asked(spec, analysis)


def test_the_speed_is_that_of_the_steps_after_the_first(tmp_path: Path) -> None:
    _, _, analysis = run_of(tmp_path, Job(steps=20))
    later = analysis.windows[5:]
    assert measured_rate(analysis, 4) == pytest.approx(15 * 64 / sum(window.seconds for window in later))
    assert measured_rate(analysis, 12) is None, "too few"


def test_of_a_long_run_the_newest_part_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run, _, analysis = run_of(tmp_path, Job(steps=40, by_length=True))
    assert first_step(analysis) == 0
    monkeypatch.setattr(module, "_ATTEMPTS", 700)
    # Steps of about 70 attempts.
    assert 29 <= first_step(analysis) <= 31
    monkeypatch.setattr(module, "_ATTEMPTS", 70)
    assert first_step(analysis) == 31, "never fewer steps than are needed"
    assert first_step(replace(analysis, event_uses={})) == 0
    assert re.search(r"step_39", " ".join(path.name for path in (run / "events").iterdir()))
