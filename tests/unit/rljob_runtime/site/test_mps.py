"""The service that lets workers share a GPU: started, ended, and not there. NVIDIA's program is a script here
that writes down what it is told."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from rljob_runtime.site.mps import kernels_at_once
from tests.support.runtime.descriptors import many_open

_PIPES, _LOGS = "CUDA_MPS_PIPE_DIRECTORY", "CUDA_MPS_LOG_DIRECTORY"
_SCRIPT = """#!/bin/sh
if [ "$1" = -d ]; then
    echo "start in $CUDA_MPS_PIPE_DIRECTORY of ${{CUDA_VISIBLE_DEVICES:-all}}" >> {record}
    {then}
else
    while read -r line; do echo "$line" >> {record}; done
fi
"""

Program = Callable[[str], tuple[Path, dict[str, str]]]


@pytest.fixture
def program(tmp_path: Path) -> Program:
    """Makes a program that does `then` when it is started; its record, and an environment that has it."""

    def make(then: str = ":") -> tuple[Path, dict[str, str]]:
        record, folder = tmp_path / "record", tmp_path / "bin"
        folder.mkdir()
        file = folder / "nvidia-cuda-mps-control"
        file.write_text(_SCRIPT.format(record=record, then=then))
        file.chmod(0o755)
        return record, {"PATH": f"{folder}:{os.environ['PATH']}"}

    return make


def test_it_runs_for_as_long_as_the_context_and_its_folder_goes_with_it(program: Program) -> None:
    record, environment = program(":")
    environment["CUDA_VISIBLE_DEVICES"] = "2,3"
    before = dict(environment)
    with kernels_at_once(environment) as turns:
        assert turns is None
        folder = environment[_PIPES]
        assert environment[_LOGS] == folder and Path(folder).is_dir()
        # It has all devices, so that "2" means the same to those that use it.
        assert record.read_text() == f"start in {folder} of all\n"
    assert environment == before
    assert record.read_text().splitlines()[1:] == ["quit -t 5", "quit"]
    assert not Path(folder).exists()


def test_it_is_started_by_a_process_with_many_open_files(program: Program) -> None:
    record, environment = program(":")
    with many_open(), kernels_at_once(environment) as turns:
        assert turns is None
        assert record.read_text().startswith("start in ")


def test_a_service_that_somebody_has_started_stays_as_it_is(program: Program) -> None:
    record, environment = program(":")
    environment[_PIPES] = "/run/mps"
    with kernels_at_once(environment) as turns:
        assert turns is None
        assert environment[_PIPES] == "/run/mps" and _LOGS not in environment
    assert environment[_PIPES] == "/run/mps"
    assert not record.exists()


def test_a_folder_for_its_logs_that_somebody_has_named_is_kept(program: Program) -> None:
    _, environment = program(":")
    environment[_LOGS] = "/var/log/mps"
    with kernels_at_once(environment):
        assert environment[_LOGS] == "/var/log/mps"
    assert environment[_LOGS] == "/var/log/mps" and _PIPES not in environment


def test_without_the_program_workers_take_turns(tmp_path: Path) -> None:
    environment = {"PATH": str(tmp_path)}
    with kernels_at_once(environment) as turns:
        assert turns == "nvidia-cuda-mps-control is not there: workers that share a GPU take turns"
        assert environment == {"PATH": str(tmp_path)}


def test_a_program_that_does_not_start_is_told_of_with_its_words(program: Program) -> None:
    _, environment = program("echo 'Cannot find MPS control daemon process' >&2; exit 1")
    with kernels_at_once(environment) as turns:
        assert turns is not None and turns.endswith("take turns (Cannot find MPS control daemon process)")
        assert set(environment) == {"PATH"}


def test_it_ends_with_a_process_that_is_killed(program: Program) -> None:
    record, environment = program(":")
    script = (
        "import sys, time\n"
        "from rljob_runtime.site.mps import kernels_at_once\n"
        "with kernels_at_once(): print('entered', flush=True); time.sleep(60)\n"
    )
    holder = subprocess.Popen(
        [sys.executable, "-c", script], env={**os.environ, **environment}, stdout=subprocess.PIPE
    )
    assert holder.stdout is not None and holder.stdout.readline() == b"entered\n"
    holder.send_signal(signal.SIGKILL)
    holder.wait()
    deadline = time.monotonic() + 20
    folder = Path(record.read_text().split()[2])
    while folder.exists() and time.monotonic() < deadline:
        time.sleep(0.02)
    assert record.read_text().splitlines()[1:] == ["quit -t 5", "quit"] and not folder.exists()
    holder.stdout.close()
