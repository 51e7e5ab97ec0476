"""What `rljob run` has started before it knows whether its manifest is right, and how that ends."""

import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from rljob_runtime.exit_codes import ExitCode
from tests.support.runtime.runs import ONE_ENGINE, Run, manifest, processes, running

_STAYS = """
import time
from pathlib import Path

(Path(__file__).parent / "begun").touch()
time.sleep(600)
"""
"""A reward's module that keeps the check busy for as long as a test wants."""
_MANY = 200_000
"""Prompts that a driver needs a second to read."""
_END_SECONDS = 20.0
"""For processes to end that are told to."""


def with_ray(run: Run) -> list[psutil.Process]:
    """Wait for Ray's own processes; all that the run has started."""
    run.wait(lambda: bool(processes(run.process.pid, "raylet/raylet")), "Ray")
    started: list[psutil.Process] = psutil.Process(run.process.pid).children(recursive=True)
    return started


def assert_nothing_is_left(run: Run, started: list[psutil.Process]) -> None:
    _, alive = psutil.wait_procs(started, _END_SECONDS)
    assert alive == []
    assert not run.folder.exists()


def test_a_manifest_that_is_wrong_leaves_no_ray_and_no_folder(tmp_path: Path) -> None:
    wrong = {"function": "nowhere:f"}
    file, _ = manifest(
        tmp_path, 4, pools=ONE_ENGINE, reward=wrong, schedule={"epochs": 1, "promptsPerBatch": 5}
    )
    with running(file) as run:
        started = with_ray(run)
        assert run.end(60) == ExitCode.REFUSED, run.log.read_text()
        assert_nothing_is_left(run, started)
        warning, error, last = run.log.read_text().splitlines()
        assert warning.startswith(f"warning: {file}:")
        assert 'spec.training.reward.function: cannot import "nowhere:f"' in error
        assert last == "1 error. Nothing was started."


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_the_check_and_ray(tmp_path: Path, number: signal.Signals) -> None:
    (tmp_path / "stays.py").write_text(_STAYS)
    file, _ = manifest(tmp_path, 4, pools=ONE_ENGINE, reward={"function": "stays:score"})
    with running(file) as run:
        run.wait((tmp_path / "begun").exists, "check")
        started = with_ray(run)
        run.process.send_signal(number)
        assert run.end(_END_SECONDS) == ExitCode.STOPPED, run.log.read_text()
        assert_nothing_is_left(run, started)
        assert run.log.read_text() == "rljob: interrupted.\n"


def test_engines_begin_while_the_manifest_is_checked(tmp_path: Path) -> None:
    """They, and the processes of their engine cores, import vLLM meanwhile; a signal ends all of them."""
    (tmp_path / "stays.py").write_text(_STAYS)
    engine = {"engine": {"vllm": {"kvCacheGiB": 0.1}}, "samplesPerPrompt": 2, "maxResponseTokens": 32}
    file, _ = manifest(tmp_path, 4, pools=ONE_ENGINE, reward={"function": "stays:score"}, rollout=engine)
    with running(file) as run:

        def core() -> bool:
            return any(
                processes(each.pid, "spawn_main") for each in processes(run.process.pid, "ray::RolloutWorker")
            )

        run.wait(core, "engine core")
        started = with_ray(run)
        run.process.send_signal(signal.SIGHUP)
        assert run.end(_END_SECONDS) == ExitCode.STOPPED, run.log.read_text()
        assert_nothing_is_left(run, started)


def test_ray_that_is_lost_during_the_check_ends_it_at_once(tmp_path: Path) -> None:
    """Whatever would wait for it, and however long the check takes."""
    (tmp_path / "stays.py").write_text(_STAYS)
    engine = {"engine": {"vllm": {"kvCacheGiB": 0.1}}, "samplesPerPrompt": 2, "maxResponseTokens": 32}
    file, _ = manifest(tmp_path, 4, pools=ONE_ENGINE, reward={"function": "stays:score"}, rollout=engine)
    with running(file) as run:
        run.wait(lambda: bool(processes(run.process.pid, "ray::RolloutWorker")), "early worker")
        started = with_ray(run)
        (server,) = [each for each in started if each.name() == "gcs_server"]
        server.kill()
        assert run.end(3) == ExitCode.FAILED, run.log.read_text()
        assert_nothing_is_left(run, started)
        last = run.log.read_text().splitlines()[-1]
        assert last.startswith("rljob: Ray is gone: its gcs_server was ended by SIGKILL")


def test_a_signal_between_the_check_and_the_job_ends_it_as_any_other(tmp_path: Path) -> None:
    """While the driver reads the data, before there is anything to stop."""
    (tmp_path / "many.jsonl").write_text('{"prompt": "abc"}\n' * _MANY)
    data = {"jsonl": {"path": "many.jsonl"}, "maxPromptTokens": 8}
    file, _ = manifest(
        tmp_path, 4, pools=ONE_ENGINE, data=data, schedule={"totalSteps": 4, "promptsPerBatch": 4}
    )
    with running(file) as run:
        run.wait((run.folder / "driver.log").exists, "the job")
        started = psutil.Process(run.process.pid).children(recursive=True)
        run.process.send_signal(signal.SIGTERM)
        assert run.end(60) == ExitCode.STOPPED, run.log.read_text()
        _, alive = psutil.wait_procs(started, _END_SECONDS)
        assert alive == []


_MAKES = """
import os, signal, sys
from pathlib import Path
from rljob_runtime.cli.checking import Asked, checking
from rljob_runtime.manifest.load import read

file, folder, killed = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3] == "killed"
with checking(Asked(read(file), folder.parent, False, 2**50, makes_model=True)) as check:
    verdict = check.verdict()
    assert not verdict.errors and verdict.broken is None, verdict
    if killed:
        check.end()
    check.make_model(folder)
    if sys.argv[3] == "interrupted":
        # As a terminal's Ctrl-C, which the driver answers by stopping once the model is there.
        os.kill(check._process.pid, signal.SIGINT)
    check.model_made()
    print(sorted(each.name for each in folder.parent.iterdir()), "torch" in sys.modules)
"""


@pytest.mark.parametrize(
    ("ending", "there"),
    [
        ("goes on", ["initial_model", "job.yaml"]),
        ("interrupted", ["initial_model", "job.yaml"]),
        ("killed", ["job.yaml"]),
    ],
)
def test_the_process_that_checks_makes_a_random_model(tmp_path: Path, ending: str, there: list[str]) -> None:
    """Whole or not at all, and without torch in the process that asks for it."""
    file, _ = manifest(tmp_path, 4, pools=ONE_ENGINE)
    folder = tmp_path / "initial_model"
    told = subprocess.run(
        [sys.executable, "-c", _MAKES, str(file), str(folder), ending],
        capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert told.returncode == 0, told.stderr
    assert told.stdout.splitlines()[-1] == f"{there} False"
    if there[0] == folder.name:
        assert {"config.json", "model.safetensors", "tokenizer.json"} <= {
            each.name for each in folder.iterdir()
        }
