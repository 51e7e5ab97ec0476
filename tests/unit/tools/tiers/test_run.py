"""Tiers run beside each other and after each other; their output stays together; a failure ends none of them.

In place of `make` stands a script that knows this file's targets.
"""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tools.tiers import run as runner
from tools.tiers.stages import ALL, CHECK, Tier, tiers, yielding

ROOT = Path(__file__).parents[4]
PASSED = '<testsuites><testsuite><testcase name="a" /></testsuite></testsuites>'
SKIPPED = PASSED.replace("/>", '><skipped type="pytest.skip" message="no root" /></testcase>')
MAKE = f"""
import os, pathlib, sys, time
target, folder = sys.argv[1], pathlib.Path(os.environ["FOLDER"])
def wait_for(name):
    deadline = time.monotonic() + 60
    while not (folder / name).exists():
        if time.monotonic() > deadline: sys.exit(f"no {{name}}")
        time.sleep(0.01)
def junit(text):
    # The last one counts, as for pytest: a tier that runs this test has one of its own.
    pathlib.Path(os.environ["PYTEST_ADDOPTS"].rpartition("--junitxml=")[2]).write_text(text)
(folder / target).write_text(str(os.nice(0)))
print(target, "begins", flush=True)
if target == "left": wait_for("right")     # both run at the same time
if target == "right": wait_for("left")
if target == "prebuild": wait_for("left"); time.sleep(0.2); (folder / "built").touch()
if target == "needs-built": assert (folder / "built").exists(); junit({PASSED!r})
if target == "skips": junit({SKIPPED!r})
if target == "hangs": time.sleep(600)
print(target, "ends", flush=True)
sys.exit(3 if target == "fails" else 0)
"""


@pytest.fixture
def make(tmp_path, monkeypatch):
    """The command in place of `make`; results go to a folder of the test."""
    (tmp_path / "make.py").write_text(MAKE)
    monkeypatch.setenv("FOLDER", str(tmp_path))
    monkeypatch.delenv("CI", raising=False)
    monkeypatch.setattr(runner, "FOLDER", tmp_path / "tiers")
    kept = signal.getsignal(signal.SIGTERM)
    yield sys.executable, str(tmp_path / "make.py")
    signal.signal(signal.SIGTERM, kept)


def tier(name, **more):
    return Tier(name, name, **more)


def run(stages, make):
    return runner.run(stages, runner.FOLDER / "told.json", make)


def outcomes():
    written = json.loads((runner.FOLDER / "told.json").read_text())
    return {each["tier"]: each["outcome"] for each in written["tiers"]}


def test_lanes_run_together_and_their_output_stays_apart(make, capfdbinary):
    stages = (((tier("left"), tier("after")), (tier("right"),)), ((tier("needs-built", built=True),),))
    assert run(stages, make) == 0
    lines = capfdbinary.readouterr().out.decode().splitlines()
    said = [line for line in lines if line.endswith(("begins", "ends")) and "prebuild" not in line]
    names = ("left", "after", "right", "needs-built")
    assert said == [f"{name} {what}" for name in names for what in ("begins", "ends")]
    assert outcomes() == dict.fromkeys(("left", "after", "right", "needs-built"), "passed")


def test_a_failure_fails_the_whole_and_the_rest_runs(make, capfdbinary):
    stages = (((tier("fails"), tier("skips")),), ((tier("last"),),))
    assert run(stages, make) == 1
    assert outcomes() == {"fails": "failed", "skips": "skipped", "last": "passed"}
    shown = capfdbinary.readouterr().out.decode()
    assert "exit code 3" in shown and "skipped in skips: all tests: no root" in shown


def test_a_lane_that_yields_leaves_others_the_cores(make, tmp_path):
    assert run((((tier("left"),), yielding(tier("right"), tier("after"))),), make) == 0
    usual = os.nice(0)
    lowered = min(usual + 10, 19)
    given = {name: int((tmp_path / name).read_text()) for name in ("left", "right", "after")}
    assert given == {"left": usual, "right": lowered, "after": lowered}


def test_in_ci_no_tier_is_skipped(make, monkeypatch):
    monkeypatch.setenv("CI", "true")
    assert run((((tier("skips"),),),), make) == 1
    assert outcomes() == {"skips": "failed"}


def test_told_to_end_it_ends_what_runs(make, tmp_path):
    code = (
        "import sys; from pathlib import Path; from tools.tiers import run;"
        "from tools.tiers.stages import Tier;"
        f"run.FOLDER = Path({str(tmp_path)!r});"
        f"sys.exit(run.run((((Tier('hangs', 'hangs'),),),), run.FOLDER / 'told.json', {make!r}))"
    )
    with subprocess.Popen([sys.executable, "-c", code], cwd=ROOT, stdout=subprocess.PIPE) as process:
        assert process.stdout
        while b"hangs begins" not in process.stdout.readline():
            pass
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 128 + signal.SIGTERM
        # The pipe ends when the last process that has it does; alone it would hang for longer than this test
        # may take.
        process.stdout.read()


def test_every_tier_has_its_tests_and_its_target():
    names = [each.name for each in tiers(ALL)]
    assert len(names) == len(set(names)) and set(tiers(CHECK)) <= set(tiers(ALL))
    folders = {each.name for each in (ROOT / "tests").iterdir() if list(each.glob("**/test_*.py"))}
    assert folders <= {name.partition("-")[0] for name in names}
    for each in tiers(ALL):
        assert subprocess.run(["make", "-n", each.target], cwd=ROOT, capture_output=True).returncode == 0
