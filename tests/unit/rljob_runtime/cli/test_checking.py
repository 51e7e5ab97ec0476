"""The check that takes place while Ray starts: what it finds, in this process; as a process, how it ends."""

import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from rljob_runtime.cli.checking import Asked, _check_machine, examine
from rljob_runtime.manifest.adapters import model_size
from rljob_runtime.manifest.checks import model_parameters
from rljob_runtime.manifest.load import read
from rljob_runtime.manifest.preflight import free_memory
from tests.support.disks import small_disk
from tests.support.jobs import job

_AS_A_PROCESS = """
import os, signal, sys, time
from pathlib import Path
from rljob_runtime.cli.checking import Asked, CheckDied, checking
from rljob_runtime.manifest import checks
from rljob_runtime.manifest.load import read

ENDINGS = {{
    "killed": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "interrupted": lambda: os.kill(os.getpid(), signal.SIGINT),
    "exits": lambda: sys.exit(7),
    "breaks": lambda: {{}}["key"],
    "goes on": lambda: time.sleep(60),
}}
checks.check = lambda _: (ENDINGS[{ending!r}](), ([], []))[1]
began = time.monotonic()
try:
    with checking(Asked(read(Path({file!r})), Path({folder!r}), False, 1)) as check:
        if {ending!r} != "goes on":
            verdict = check.verdict()
            print(verdict.broken.splitlines()[-1])
except CheckDied as error:
    print(error)
except KeyboardInterrupt:
    print("interrupted")
try:
    os.waitpid(-1, 0)
except ChildProcessError:
    assert time.monotonic() - began < 30
    print("no process is left")
"""


@pytest.mark.parametrize(
    ("changes", "memory", "errors", "warnings"),
    [
        ({}, None, [], []),
        ({"training.reward.function": "nowhere:f"}, None, ["spec.training.reward.function: "], []),
        ({"pools.fastRollout.replicas": 4096}, 2**50, ["spec.pools: the pools have 4097 workers"], []),
        ({}, 2**20, ["spec.pools: the job takes at least "], []),
        (
            # The machine is not measured for a manifest that is wrong.
            {"training.reward.function": "nowhere:f", "pools.fastRollout.replicas": 4096},
            None,
            ["spec.training.reward.function: "],
            [],
        ),
        (
            {"training.schedule": {"epochs": 1, "promptsPerBatch": 4}, "training.data.generated.rows": 8},
            None,
            [],
            ["this job trains 2 steps"],
        ),
    ],
)
def test_what_is_found(
    tmp_path: Path, changes: dict[str, Any], memory: int | None, errors: list[str], warnings: list[str]
) -> None:
    file = tmp_path / "job.yaml"
    file.write_text(yaml.safe_dump(job({"training.rollout.engine": {"torch": {}}, **changes})))
    free = free_memory() if memory is None else memory
    found = examine(Asked(read(file), tmp_path / "run", share=False, memory=free))
    assert found.broken is None
    for words, told in ((errors, found.errors), (warnings, found.warnings)):
        assert len(words) == len(told)
        assert all(part in str(each) for part, each in zip(words, told, strict=True))


@pytest.mark.parametrize("resumes", [True, False])
def test_checkpoints_of_the_run_that_goes_on_make_room(tmp_path: Path, resumes: bool) -> None:
    file, folder = tmp_path / "job.yaml", tmp_path / "disk"
    file.write_text(yaml.safe_dump(job({"training.rollout.engine": {"torch": {}}})))
    manifest = read(file)
    size = model_size(manifest.job, tmp_path, model_parameters(manifest.job, tmp_path)).trained * 12
    # For three there is room, and for none beside two of them and what was written of a third one.
    with small_disk(folder, megabytes=math.ceil(3.5 * size / 2**20)):
        for name in ("step_3", "step_6", "step_9.tmp"):
            (folder / "checkpoints" / name).mkdir(parents=True)
            (folder / "checkpoints" / name / "tensors").write_bytes(bytes(size))
        asked = Asked(manifest, folder, share=False, memory=free_memory(), resumes=resumes)
        assert asked.manifest.job.spec.training.checkpoint.keep == 2
        told = [str(each) for each in _check_machine(asked)]
    assert len(told) == (0 if resumes else 1)
    assert all("spec.training.checkpoint: 2 checkpoints and the one being written" in each for each in told)


def test_a_check_that_breaks_is_told_with_its_traceback(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(manifest: object) -> None:
        raise RuntimeError("of our own making")

    monkeypatch.setattr("rljob_runtime.manifest.checks.check", broken)
    file = tmp_path / "job.yaml"
    file.write_text(yaml.safe_dump(job()))
    found = examine(Asked(read(file), tmp_path / "run", share=False, memory=1))
    assert found.broken is not None and found.broken.endswith("RuntimeError: of our own making")


@pytest.mark.parametrize(
    ("ending", "told"),
    [
        (
            "killed",
            "the process that checks the manifest was killed, as the kernel does where memory runs out: make "
            "room, and run it again",
        ),
        ("interrupted", "interrupted"),
        ("exits", "the process that checks the manifest ended with exit code 7 before it had an answer"),
        ("breaks", "KeyError: 'key'"),
        ("goes on", None),
    ],
)
def test_however_the_process_ends_it_is_waited_for_and_gone(
    tmp_path: Path, ending: str, told: str | None
) -> None:
    """In a new Python: this one may have threads, which forks do not have."""
    file = tmp_path / "job.yaml"
    file.write_text(yaml.safe_dump(job()))
    code = _AS_A_PROCESS.format(ending=ending, file=str(file), folder=str(tmp_path / "run"))
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert ended.returncode == 0, ended.stderr
    assert ended.stderr == ""
    assert ended.stdout.splitlines() == [*([told] if told else []), "no process is left"]
