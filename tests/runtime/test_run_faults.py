"""A real run loses its processes one after the other: no prompt is lost, none is trained twice."""

import copy
import json
import os
import re
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import gettempdir

import psutil
import pytest
import yaml
from safetensors import safe_open

from rljob_runtime.data.length_trace import LENGTHS_FILE, read_length_trace
from rljob_runtime.exit_codes import ExitCode
from rljob_runtime.groups.counts import counts_in, in_words
from rljob_runtime.manifest.checks import check
from rljob_runtime.manifest.load import read
from rljob_runtime.run_folder import Found, find
from rljob_runtime.site.process_log import log_file
from rljob_runtime.site.scratch import OWNER
from rljob_runtime.trace.record.metrics_log import METRICS_FILE, read_metrics
from rljob_runtime.trace.record.sample_log import read_samples
from rljob_runtime.trace.record.start_log import read_starts
from rljob_runtime.trace.report.page import REPORT_FILE
from rljob_runtime.trainer.checkpoint import newest
from tests.support.runtime.runs import ONE_ENGINE, PROMPTS, Run, held, hold, manifest, processes, running
from tests.support.runtime.traces import made

STEPS = 24
STOPPING = "(again: at once)"
"""Told when a first signal is heeded."""


def assert_every_prompt_once(run: Run, steps: int = STEPS) -> None:
    trained = run.trained()
    assert sorted(trained) == list(range(steps))
    assert sorted(uid for uids in trained.values() for uid in uids) == list(range(steps * PROMPTS))
    # One line for each step, whatever was trained again, also for readers that know nothing of restarts.
    lines = (run.folder / METRICS_FILE).read_text().splitlines()
    assert [json.loads(line)["step"] for line in lines] == list(range(steps))


@pytest.mark.parametrize("name", ["raylet", "gcs_server"])
def test_a_job_whose_ray_is_gone_ends_at_once(tmp_path, name):
    file, _ = manifest(tmp_path, STEPS, pools=ONE_ENGINE, **held(tmp_path, 1))
    with running(file) as run:
        run.wait_for_step(1)
        actors = [run.actor(each) for each in ("RolloutWorker", "QueueHost", "TrainerActor")]
        [lost] = [each for each in psutil.Process(run.process.pid).children() if each.name() == name]
        lost.kill()
        assert run.end(30) == ExitCode.FAILED, run.log.read_text()
        last = run.log.read_text().splitlines()[-1]
        assert last.startswith(f"rljob: Ray is gone: its {name} was ended by SIGKILL"), last
        _, alive = psutil.wait_procs(actors, 20)
        assert alive == []


@pytest.mark.timeout(300)
def test_lost_processes_cost_no_prompt(tmp_path):
    file, document = manifest(tmp_path, STEPS, **held(tmp_path, 4))
    with running(file) as run:
        faults = {4: "RolloutWorker", 8: "QueueHost", 12: "TrainerActor", 16: "RolloutWorker"}
        for step, name in faults.items():
            run.let(step)
            run.wait_for_step(step)
            os.kill(run.actor(name).pid, signal.SIGKILL)
        run.let()
        assert run.end() == 0, run.log.read_text()
        assert_every_prompt_once(run)
        text = run.log.read_text()
        assert "a replacement starts" in text
        assert "the queue host was lost and is back" in text
        assert "the trainer goes on from step" in text
        # Ray's own words about them, which are long.
        assert "(raylet)" not in text
        assert_counts_sum(run)
        assert [start.cause for start in read_starts(run.folder)] == ["new", "trainer lost"]
        log = log_file(run.folder, "trainer-0")
        assert (
            "the trainer was lost (a process of the trainer died (rank 0): no exit code, as by SIGKILL, "
            f"which the kernel sends where memory runs out; its log is {log})"
            in (run.folder / REPORT_FILE).read_text()
        )
        for worker in ("fast-0", "trainer-0"):
            assert " INFO " in log_file(run.folder, worker).read_text()
        trace = read_length_trace(run.folder / LENGTHS_FILE)
        assert (trace.covered, trace.incomplete, trace.unreadable) == (STEPS * PROMPTS, 0, 0)
        assert_what_the_model_says(run)
    # The same job may have the lengths that it had, and no other data may.
    rollout, data = (document["spec"]["training"][name] for name in ("rollout", "data"))
    rollout["forcedLengths"] = str(run.folder / LENGTHS_FILE)
    file.write_text(yaml.safe_dump(document))
    assert check(read(file)) == ([], [])
    data["generated"]["task"] = "reverse"
    file.write_text(yaml.safe_dump(document))
    (refused,), _ = check(read(file))
    assert "is of other data than this job's" in str(refused)


def assert_what_the_model_says(run: Run, steps: int = STEPS) -> None:
    """The text of every response, for a step has fewer than are kept; each once, in its step."""
    trained, says = run.trained(), read_samples(run.folder)
    assert says.unreadable == 0
    assert sorted((row.uid, row.index) for row in says.rows) == [
        (uid, index) for uid in range(steps * PROMPTS) for index in range(2)
    ]
    for row in says.rows:
        assert row.uid in trained[row.step]
        assert row.prompt.startswith("<bos>") and row.prompt.endswith("<sep>")
        assert row.response.endswith("<eos>") or row.finish == "length"
        assert row.tokens > 0
        assert row.reward is not None and row.engine and row.first_version is not None
        assert 0 <= row.trained_with - row.first_version <= 1
    # It may be private.
    elsewhere = [(run.folder / name).read_text() for name in ("driver.log", METRICS_FILE)]
    assert not any(row.prompt in other for row in says.rows for other in elsewhere)


def assert_counts_sum(run: Run) -> None:
    """After every step each group that was begun is accounted for, at the end each is trained, and the
    closing line says what was interrupted."""
    rows = read_metrics(run.folder / METRICS_FILE).rows
    for row in rows:
        counts = counts_in(row)
        assert counts is not None
        assert counts.dispatched == counts.accepted + sum(counts.cancelled.values()) + counts.open
    assert counts.accepted == sum(len(row["uids"]) for row in rows) + sum(counts.discarded.values())
    told = re.findall(r"(?:No prompt is lost|Not trained): .*", run.log.read_text())
    assert [line.split("  ")[0] for line in told] == ([sentence] if (sentence := in_words(counts)) else [])


@pytest.mark.timeout(400)
def test_a_killed_engine_core_costs_no_prompt(tmp_path):
    """The process below the rollout worker dies while it generates: the worker lives, and tells. Responses
    get the lengths that are given all the same."""
    steps = 8
    lengths = made(tmp_path / "lengths.jsonl", steps * PROMPTS, samples=2, most_tokens=200)
    file, _ = manifest(
        tmp_path,
        steps,
        pools=ONE_ENGINE,
        rollout={
            "engine": {"vllm": {"kvCacheGiB": 0.1}},
            "samplesPerPrompt": 2,
            "maxResponseTokens": 200,
            "maxRunningRequests": 32,
            "forcedLengths": "lengths.jsonl",
        },
        # Three batches may be on their way: the engine always has something to generate.
        **{"async": {"maxStaleness": 2}},
    )
    with running(file) as run:
        run.wait_for_step(2, 300)
        [core] = processes(run.actor("RolloutWorker").pid, "EngineCore")
        core.kill()
        assert run.end(300) == 0, run.log.read_text()
        assert_every_prompt_once(run, steps)
        told = re.search(
            rf"engine core \(process {core.pid}\) ended.*; (\d+) requests move, a replacement starts",
            run.log.read_text(),
        )
        assert told, run.log.read_text()
        assert int(told[1]) > 0
        assert "rollout worker fast-0 is back" in run.log.read_text()
        assert read_length_trace(run.folder / LENGTHS_FILE).tokens.tolist() == lengths.tolist()


@pytest.mark.timeout(900)
def test_killed_as_a_whole_it_goes_on_where_it_was(tmp_path):
    # Killed once so many steps are recorded, and after so many seconds more: the next step is in its begin,
    # its midst or its end then, and so are checkpoints.
    kills, steps = ((5, 0.0), (9, 0.3), (13, 0.9)), 16
    lengths = made(tmp_path / "lengths.jsonl", steps * PROMPTS, samples=2, most_tokens=32)
    file, document = manifest(tmp_path, steps, ONE_ENGINE, **held(tmp_path, 0))
    document["spec"]["training"]["rollout"]["forcedLengths"] = "lengths.jsonl"
    file.write_text(yaml.safe_dump(document))
    reached: list[int] = []
    left: list[Path] = []
    for step, delay in kills:
        # Held soon after, it cannot come to where it is killed next.
        hold(tmp_path, step + 1)
        with running(file, *(["--resume"] if reached else [])) as run:
            run.wait_for_step(step)
            time.sleep(delay)
            left += temporary_folders(run.process.pid)
            # Ray's agent for environments takes a minute to end.
            started = [each for each in processes(run.process.pid, "") if "RuntimeEnv" not in each.name()]
            run.process.kill()
            run.end()
            _, alive = psutil.wait_procs(started, timeout=20)
            assert not alive
            reached.append(len(run.trained()))
    with running(file, "--resume") as run:
        run.let()
        assert run.end() == 0, run.log.read_text()
        assert_every_prompt_once(run, steps=steps)
        # Of the sockets of workers and of the queue; the next run removes what a killed one left.
        assert len(left) == 2 * len(kills) and not any(folder.exists() for folder in left)
        # Each run trained, as the one before had left steps.
        targets = [*(step for step, _ in kills[1:]), steps]
        assert all(before < target for before, target in zip(reached, targets, strict=True))
        assert [start.cause for start in read_starts(run.folder)] == ["new", *["resumed"] * len(kills)]
        # Each response once, whatever was generated again.
        trace = read_length_trace(run.folder / LENGTHS_FILE)
        assert sorted(trace.uids.tolist()) == list(range(steps * PROMPTS))
        assert trace.tokens.tolist() == lengths[trace.uids].tolist()
        assert_what_the_model_says(run, steps)


def temporary_folders(process: int) -> list[Path]:
    """Those in the folder for temporary files that the process holds."""
    opened = [Path(file.path) for file in psutil.Process(process).open_files()]
    return [file.parent for file in opened if file.name == OWNER and file.parents[1] == Path(gettempdir())]


def interrupted(run: Run, *numbers: signal.Signals) -> int:
    """Signals after a few steps of a job that is held there, each to the process and then to its group, as
    `timeout` sends them; how many steps are done."""
    run.wait_for_step(4)
    for number in numbers:
        run.process.send_signal(number)
        os.killpg(run.process.pid, number)
    run.wait(lambda: STOPPING in run.log.read_text(), "answer to the signal")
    if signal.SIGHUP in numbers:
        # Of one terminal that is closed more than one may come, and then they ask for no more.
        time.sleep(0.3)
        os.killpg(run.process.pid, signal.SIGHUP)
    # The stop waits for the rewards of what is generated.
    run.let()
    assert run.end() == 130, run.log.read_text()
    return len(run.trained())


@pytest.mark.timeout(300)
def test_ctrl_c_stops_with_a_checkpoint_and_resume_goes_on(tmp_path):
    file, _ = manifest(tmp_path, 12, ONE_ENGINE, **held(tmp_path, 4))
    with running(file) as run:
        # Two of a kind might come as one.
        done = interrupted(run, signal.SIGINT, signal.SIGTERM)
        printed = re.search(r"Go on with: (.*)$", run.log.read_text(), re.MULTILINE)
        assert printed is not None, run.log.read_text()
        assert find(run.folder) is Found.UNFINISHED
        assert (run.folder / "checkpoints" / "latest").read_text().strip() == f"step_{done}"
        with safe_open(run.folder / "model" / "model.safetensors", "numpy") as model:
            assert model.metadata()["step"] == str(done)
    pasted = subprocess.run(["bash", "-c", printed[1]], capture_output=True, text=True, timeout=240)
    assert pasted.returncode == 0, pasted.stdout + pasted.stderr
    assert find(run.folder) is Found.FINISHED
    assert_every_prompt_once(run, steps=12)
    assert_what_the_model_says(run, steps=12)


@pytest.mark.timeout(400)
def test_a_resume_with_other_sizes_trains_every_prompt_once_and_one_beyond_the_end_is_refused(tmp_path):
    file, job = manifest(tmp_path, 12, ONE_ENGINE, **held(tmp_path, 4))
    with running(file) as run:
        done = interrupted(run, signal.SIGHUP)
    job["spec"]["training"] |= {
        "schedule": {"epochs": 1, "promptsPerBatch": 7},
        "async": {"maxStaleness": 0.5, "stepsPerVersion": 2},
    }
    file.write_text(yaml.safe_dump(job))
    with running(file, "--resume") as run:
        assert run.end() == 0, run.log.read_text()
        trained = run.trained()
        assert sorted(uid for uids in trained.values() for uid in uids) == list(range(12 * PROMPTS))
        assert {len(trained[step]) for step in range(done, len(trained) - 1)} <= {7}
        assert_counts_sum(run)
    assert_another_model_is_refused(run, file, job)
    job["spec"]["training"]["schedule"] = {"totalSteps": 2}
    file.write_text(yaml.safe_dump(job))
    kept = [run.folder / name for name in ("job.yaml", "finished", "model_files/config.json")]
    before = [each.read_bytes() for each in kept]
    with running(file, "--resume") as run:
        assert run.end() == 2, run.log.read_text()
        assert [each.read_bytes() for each in kept] == before
        assert f"has {len(trained)} steps, and training.schedule.totalSteps is 2: set" in run.log.read_text()


@pytest.mark.timeout(300)
def test_a_checkpoint_that_cannot_be_loaded_is_told_without_the_advice_to_go_on_from_it(tmp_path):
    file, _ = manifest(tmp_path, 12, ONE_ENGINE, checkpoint={"everySteps": 2}, **held(tmp_path, 2))
    with running(file) as run:
        run.wait(lambda: newest(run.folder / "checkpoints") is not None, "checkpoint")
        run.process.kill()
        run.end()
    (run.folder / "checkpoints" / "step_2" / ".metadata").unlink()
    run.log.unlink()
    with running(file, "--resume") as run:
        assert run.end() == 1, run.log.read_text()
        told = run.log.read_text()
    assert "it is damaged, or of another model: take the model that the run began with" in told
    assert "Go on with" not in told


def assert_another_model_is_refused(run, file, job):
    """Before anything is started; the run's folder stays as it was."""
    kept = [run.folder / name for name in ("job.yaml", "finished", "model_files/config.json")]
    before = [each.read_bytes() for each in kept]
    other = copy.deepcopy(job)
    other["spec"]["training"]["model"]["random"]["layers"] = 4
    file.write_text(yaml.safe_dump(other))
    with running(file, "--resume") as refused:
        assert refused.end() == 2, refused.log.read_text()
        error, last = refused.log.read_text().splitlines()[-2:]
    assert "spec.training.model.random.layers: 4, and the run began with 2: set it back to go on" in error
    assert last == "1 error. Nothing was started."
    assert [each.read_bytes() for each in kept] == before


@contextmanager
def suspended(process: psutil.Process) -> Iterator[None]:
    """A process that stands still meanwhile."""
    process.suspend()
    try:
        yield
    finally:
        with suppress(psutil.NoSuchProcess):
            process.resume()


@pytest.mark.timeout(300)
def test_ctrl_c_before_the_first_step_ends_the_run_and_all_its_processes(tmp_path):
    """There is no step to wait for, and nothing to write."""
    file, _ = manifest(tmp_path, 200, ONE_ENGINE)
    with running(file) as run:
        run.wait(lambda: "starting" in run.log.read_text(), "start")
        run.wait((run.folder / "job.yaml").exists, "the run's folder")
        started = psutil.Process(run.process.pid).children(recursive=True)
        run.process.send_signal(signal.SIGINT)
        assert run.end(3) == 130, run.log.read_text()
        last = run.log.read_text().splitlines()[-1]
        assert "stopped before the first step: 0 steps" in last and "Go on with" in last
        assert STOPPING not in run.log.read_text()
        _, alive = psutil.wait_procs(started, timeout=20)
        assert not alive
        assert not (run.folder / "checkpoints").exists()


@pytest.mark.timeout(300)
def test_ctrl_c_twice_stops_at_once_and_leaves_no_process(tmp_path):
    file, _ = manifest(tmp_path, 200, ONE_ENGINE)
    with running(file) as run:
        run.wait_for_step(4)
        started = [run.actor(name) for name in ("RolloutWorker", "TrainerActor", "QueueHost")]
        for unused in ("/dashboard.py", "DashboardAgent", "/log_monitor.py", "/monitor.py"):
            assert not processes(run.process.pid, unused), "Ray has processes that no job uses"
        # Without its trainer the run cannot come to the stop that the first signal asks for.
        with suspended(started[1]):
            run.process.send_signal(signal.SIGINT)
            run.wait(lambda: STOPPING in run.log.read_text(), "answer to the first signal")
            # Signals that come together are one.
            time.sleep(0.3)
            run.process.send_signal(signal.SIGINT)
            assert run.end(60) == 130, run.log.read_text()
        assert "stopped at once" in run.log.read_text()
        _, alive = psutil.wait_procs(started, timeout=60)
        assert not alive
        assert (run.folder / "checkpoints" / "latest").exists()
