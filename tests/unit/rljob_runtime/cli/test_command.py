"""The command line: what is printed where, and exit codes."""

import errno
import os
import shlex
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest
import yaml

from rljob_api.errors import Problem
from rljob_runtime.cli import main, manifest_commands
from rljob_runtime.cli.arguments import parser
from rljob_runtime.cli.manifest_commands import program, resume_command
from rljob_runtime.cli.verdict import Verdict
from rljob_runtime.manifest.load import Finding
from rljob_runtime.run_folder import Begin, held
from tests.support.interrupts import pressed_at_import
from tests.support.jobs import job
from tests.support.runtime.synthetic_run import Job, write_run


def test_validate_names_every_mistake_of_every_file(tmp_path, capsys):
    good = write(tmp_path / "good.yaml")
    bad = write(tmp_path / "bad.yaml", {"training.async.maxStalenes": 1, "accelerator": "tpu"})
    gone = tmp_path / "gone.yaml"
    assert main(["validate", str(good), str(bad), str(gone)]) == 2
    out, err = capsys.readouterr()
    assert out == f"{good}: valid\n"
    assert err.splitlines()[-1] == "3 errors. Nothing was started."
    assert [line.split("  ")[1].split(":")[0] for line in err.splitlines()[:-1]] == [
        "spec.accelerator",
        "spec.training.async.maxStalenes",
        "cannot be read",
    ]


def test_validate_of_good_files(tmp_path, capsys):
    path = write(tmp_path / "good.yaml")
    assert main(["validate", str(path)]) == 0
    assert capsys.readouterr() == (f"{path}: valid\n", "")


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
@pytest.mark.parametrize(("manifest", "code"), [({}, 0), ({"accelerator": "tpu"}, 2)])
def test_standard_streams_may_be_closed(tmp_path, manifest, code, closed):
    path = write(tmp_path / "job.yaml", manifest)
    command = f"{shlex.quote(sys.executable)} -m rljob_runtime.cli validate {shlex.quote(str(path))}"
    assert subprocess.run(["bash", "-c", f"{command} {closed}"], timeout=60).returncode == code


def test_whoever_has_read_enough_is_told_of_no_error():
    """As `head` has, of more than a pipe holds."""
    command = [sys.executable, "-m", "rljob_runtime.cli", "crd"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as printing:
        assert printing.stdout is not None and printing.stderr is not None
        assert printing.stdout.readline()
        printing.stdout.close()
        assert printing.wait(60) == 0
        assert printing.stderr.read() == b""


@pytest.mark.parametrize(
    ("around", "out", "err", "code"),
    [
        ("{} >/dev/full", "", "rljob: the output cannot be written: No space left on device.\n", 1),
        ("PYTHONIOENCODING=latin-1 {}", "job \xfc \\u540d.yaml: valid\n", "", 0),
    ],
    ids=["a full disk", "other characters"],
)
def test_what_the_output_does_not_take(tmp_path, around, out, err, code):
    write(tmp_path / "job \xfc \u540d.yaml")
    command = around.format(f"{shlex.quote(sys.executable)} -m rljob_runtime.cli validate job*")
    ended = subprocess.run(["bash", "-c", command], cwd=tmp_path, capture_output=True, timeout=60)
    assert (ended.stdout.decode("latin-1"), ended.stderr.decode(), ended.returncode) == (out, err, code)


def test_what_to_look_at_again_is_told_beside_what_is_wrong(tmp_path, capsys):
    changes = {
        "training.reward.function": "nowhere:f",
        "training.schedule": {"epochs": 1, "promptsPerBatch": 4},
        "training.data.generated.rows": 8,
    }
    path = write(tmp_path / "job.yaml", changes)
    assert main(["validate", str(path)]) == 2
    warning, error, last = capsys.readouterr().err.splitlines()
    assert warning.startswith(f"warning: {path}:") and "this job trains 2 steps" in warning
    assert "spec.training.reward.function: " in error
    assert last == "1 error. Nothing was started."


def test_run_refuses_wrong_fields_before_it_starts_anything(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(manifest_commands, "checking", None)
    path = write(tmp_path / "job.yaml", {"training.schedule": {}, "training.reward.function": "nowhere:f"})
    folder = tmp_path / "run"
    assert main(["run", str(path), "--output", str(folder)]) == 2
    reward, schedule, last = sorted(capsys.readouterr().err.splitlines(), key=lambda line: "spec" not in line)
    assert "spec.training.reward.function: " in reward
    assert "spec.training.schedule: set exactly one of totalSteps, epochs" in schedule
    assert last == "2 errors. Nothing was started."
    assert not folder.exists()


def test_what_the_check_found_is_told_with_the_exit_code_for_it(capsys):
    warned = ("job.yaml:3  this job trains 2 steps.",)
    wrong = (Finding("job.yaml", 9, Problem(("spec",), "is too large")),)
    assert manifest_commands._told(Verdict(1.0, warnings=warned)) is None
    assert capsys.readouterr().err == "warning: job.yaml:3  this job trains 2 steps.\n"
    assert manifest_commands._told(Verdict(1.0, wrong, warned)) == 2
    assert capsys.readouterr().err.splitlines() == [
        "warning: job.yaml:3  this job trains 2 steps.",
        "job.yaml:9  spec: is too large.",
        "1 error. Nothing was started.",
    ]
    assert manifest_commands._told(Verdict(1.0, unusable="step_2 cannot be loaded")) == 1
    assert capsys.readouterr().err == "rljob: step_2 cannot be loaded.\n"
    assert manifest_commands._told(Verdict(1.0, broken="Traceback …\nKeyError: 'x'")) == 1
    assert capsys.readouterr().err == "Traceback …\nKeyError: 'x'\n"
    with pytest.raises(ModuleNotFoundError) as caught:
        manifest_commands._told(Verdict(1.0, broken="Traceback …", missing="torch"))
    assert caught.value.name == "torch" and caught.value.__notes__ == ["Traceback …"]


def test_run_refuses_a_folder_with_a_run_before_it_starts_anything(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(manifest_commands, "checking", None)
    path = write(tmp_path / "job.yaml", {"training.rollout.engine": {"torch": {}}})
    folder = tmp_path / "run"
    with held(folder, path.read_bytes(), Begin.NEW) as found:
        found.begin()
    assert main(["run", str(path), "--output", str(folder)]) == 2
    err = capsys.readouterr().err
    assert err == (
        f"rljob: {folder} holds a run already: go on with it by --resume, or begin anew by --restart, which "
        "keeps it as run.1.\n"
    )


def test_report_of_no_run(tmp_path, capsys):
    assert main(["report", str(tmp_path)]) == 2
    assert "holds no run" in capsys.readouterr().err


def test_a_report_that_the_disk_does_not_take_is_told_by_its_name(tmp_path, capsys, monkeypatch):
    def read_only(path, *_, **__):
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(path))

    run = write_run(tmp_path / "run", Job(steps=2))
    # Removing what is not there fails there too.
    monkeypatch.setattr(Path, "write_text", read_only)
    monkeypatch.setattr(Path, "unlink", read_only)
    assert main(["report", str(run)]) == 1
    assert capsys.readouterr().err == f"rljob: {run / 'report.html'}: Read-only file system.\n"


@pytest.mark.parametrize("command", ["report", "samples", "trace fit", "trace responses", "trace export"])
def test_a_persons_own_folder_with_a_manifest_is_no_run(command, tmp_path, capsys):
    """Nothing is written into it."""
    write(tmp_path / "job.yaml")
    (tmp_path / "train.jsonl").touch()
    assert main([*command.split(), str(tmp_path)]) == 2
    assert "holds a manifest and no run of it" in capsys.readouterr().err
    assert sorted(item.name for item in tmp_path.iterdir()) == ["job.yaml", "train.jsonl"]


def test_simulate_prints_what_a_job_would_do(tmp_path, capsys):
    path = write(tmp_path / "job.yaml")
    assert main(["simulate", str(path), "--seeds", "1", "--steps", "2"]) == 0
    out, err = capsys.readouterr()
    assert out.startswith("test: 1 trainer, 1 fast and 0 heavy workers")
    assert err == ""


@pytest.mark.parametrize(
    ("file", "options", "words"),
    [
        (
            "job.yaml",
            ["--trace", "none.jsonl"],
            "rljob: none.jsonl cannot be read: No such file or directory.",
        ),
        (
            "job.yaml",
            ["--assumptions", "none.yaml"],
            "none.yaml:1  cannot be read: No such file or directory",
        ),
        ("none.yaml", [], "none.yaml:1  cannot be read"),
    ],
)
def test_simulate_names_the_file_that_is_wrong(tmp_path, capsys, monkeypatch, file, options, words):
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "job.yaml")
    assert main(["simulate", file, *options]) == 2
    assert capsys.readouterr().err.startswith(words)


@pytest.mark.parametrize(
    ("command", "option"),
    [
        ("simulate job.yaml --html {}", "--html"),
        ("trace export run --output {}", "--output"),
        ("report run --output {}", "--output"),
        ("from-verl train.sh --output {}", "--output"),
        ("new --output {}", "--output"),
    ],
)
def test_a_file_to_write_whose_folder_is_not_there(tmp_path, capsys, monkeypatch, command, option):
    """Told before anything is asked, read or simulated."""
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "job.yaml")
    write_run(tmp_path / "run", Job(steps=1))
    (tmp_path / "train.sh").write_text("no launch of verl\n")
    monkeypatch.setattr("rljob_runtime.trace.forecast.simulate.compare", None)
    monkeypatch.setattr("rljob_runtime.trace.export.export.read_metrics", None)
    monkeypatch.setattr("rljob_runtime.trace.report.page.analyse_run", None)
    assert main(command.format("none/a.html").split()) == 2
    assert capsys.readouterr().err == (
        f"rljob: the folder none is not there: make it, or name another file with {option}.\n"
    )
    assert main(command.format("job.yaml/a.html").split()) == 2
    assert capsys.readouterr().err == f"rljob: job.yaml is no folder: name another file with {option}.\n"


def test_fit_of_no_run(tmp_path, capsys):
    assert main(["trace", "fit", str(tmp_path)]) == 2
    assert "holds no run" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("command", "file"),
    [
        ("report", "metrics.jsonl"),
        ("samples", "samples.jsonl"),
        ("trace fit", "starts.jsonl"),
        ("trace responses", "metrics.jsonl"),
        ("trace export", "metrics.jsonl"),
    ],
)
def test_what_of_a_run_cannot_be_read_is_named(tmp_path, capsys, command, file):
    run = write_run(tmp_path / "run", Job(steps=1))
    (run / file).unlink(missing_ok=True)
    (run / file).mkdir()
    before = sorted(run.iterdir())
    assert main([*command.split(), str(run)]) == 1
    assert capsys.readouterr() == ("", f"rljob: {run / file}: Is a directory.\n")
    assert sorted(run.iterdir()) == before


def test_a_folder_of_no_possible_name(tmp_path, capsys):
    folder = tmp_path / ("n" * 300)
    assert main(["report", str(folder)]) == 1
    assert capsys.readouterr().err == f"rljob: {folder}/job.yaml: File name too long.\n"
    assert main(["run", str(write(tmp_path / "job.yaml")), "--output", str(folder)]) == 2
    assert capsys.readouterr().err == (
        f"rljob: {folder} cannot be used: File name too long; name another with --output.\n"
    )


def test_fit_of_a_run_without_events(tmp_path, capsys):
    path = write(tmp_path / "job.yaml")
    folder = tmp_path / "run"
    with held(folder, path.read_bytes(), Begin.NEW) as found:
        found.begin()
    assert main(["trace", "fit", str(folder)]) == 2
    assert capsys.readouterr().err == (
        f"rljob: {folder}/events has no generate event: was training.profiling.events false?\n"
    )


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("report", "has nothing that a report could be made of"),
        ("trace fit", "has no generate event that can be read: 2 lines are no events and are left out"),
        ("trace export", "has no event that can be read: 2 lines are no events and are left out"),
        (
            "trace responses",
            "has no step that can be read: 2 lines are no events and are left out",
        ),
    ],
)
def test_a_run_whose_records_are_all_damaged_is_told_as_such(tmp_path, capsys, command, words):
    folder = tmp_path / "run"
    with held(folder, write(tmp_path / "job.yaml").read_bytes(), Begin.NEW) as found:
        found.begin()
    events = folder / "events" / "step_000000"
    events.mkdir(parents=True)
    (events / "worker_0.jsonl").write_bytes(b"\xff\n{\n")
    assert main([*command.split(), str(folder)]) == 2
    out, err = capsys.readouterr()
    assert (out, words in err) == ("", True), err


def test_a_missing_extra_is_named(capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "yaml", None)
    assert main(["crd"]) == 2
    assert capsys.readouterr().err == (
        "rljob: the package yaml is not installed: from the checkout, pip install '.[runtime]'.\n"
    )


def test_the_version(capsys):
    with pytest.raises(SystemExit) as caught:
        main(["--version"])
    assert caught.value.code == 0
    assert capsys.readouterr().out == f"rljob {version('rljob')}\n"


def test_an_interrupt_is_no_traceback(tmp_path, capsys, monkeypatch):
    def interrupt(manifest):
        raise KeyboardInterrupt

    monkeypatch.setattr("rljob_runtime.manifest.checks.check", interrupt)
    wrong, right = write(tmp_path / "wrong.yaml", {"accelerator": "tpu"}), write(tmp_path / "right.yaml")
    assert main(["validate", str(wrong), str(right)]) == 130
    told = capsys.readouterr().err.splitlines()
    assert told[0].startswith(f"{wrong}:")
    assert told[-1] == "rljob: interrupted."


@pytest.mark.parametrize("module", ["command", "arguments"])
def test_an_interrupt_while_it_is_imported_is_no_traceback(module, tmp_path):
    ended = subprocess.run(
        [sys.executable, "-m", "rljob_runtime.cli", "validate", "job.yaml"],
        env=pressed_at_import(tmp_path, f"rljob_runtime.cli.{module}"),
        capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    assert (ended.returncode, ended.stderr) == (130, "rljob: interrupted.\n")


def test_a_file_that_breaks_the_checks_loses_no_finding_of_others(tmp_path, capsys, monkeypatch):
    def break_on_bad(manifest):
        if manifest.path.stem == "breaks":
            raise RuntimeError("of our own making")
        return [], []

    monkeypatch.setattr("rljob_runtime.manifest.checks.check", break_on_bad)
    breaks, good = write(tmp_path / "breaks.yaml"), write(tmp_path / "good.yaml")
    wrong = write(tmp_path / "wrong.yaml", {"accelerator": "tpu"})
    with pytest.raises(RuntimeError) as caught:
        main(["validate", str(breaks), str(wrong), str(good)])
    assert caught.value.__notes__ == [f"while {breaks} was checked"]
    out, err = capsys.readouterr()
    assert out == f"{good}: valid\n"
    assert err.startswith(f"{wrong}:") and "'tpu' is not allowed" in err


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["train"],
        ["run"],
        ["run", "a", "--resume", "--restart"],
        ["run", "a", "--auto-resume", "--restart"],
    ],
)
def test_wrong_arguments(arguments, capsys):
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    assert caught.value.code == 2
    assert "usage: rljob" in capsys.readouterr().err


class TestWhatIsSaidToBePasted:
    @pytest.mark.parametrize(
        ("called", "on_path", "expected"),
        [
            ("/opt/venv/bin/rljob", "/opt/venv/bin/rljob", "rljob"),
            (".venv/bin/rljob", None, ".venv/bin/rljob"),
            (".venv/bin/rljob", "/usr/bin/rljob", ".venv/bin/rljob"),
            ("/my venv/bin/rljob", None, "'/my venv/bin/rljob'"),
            (
                "/checkout/runtime/rljob_runtime/cli/__main__.py",
                "/usr/bin/rljob",
                "/usr/bin/python3 -m rljob_runtime.cli",
            ),
            ("-c", None, "/usr/bin/python3 -m rljob_runtime.cli"),
        ],
    )
    def test_the_program(self, called, on_path, expected):
        assert program(called, on_path, "/usr/bin/python3") == expected

    @pytest.mark.parametrize(
        ("arguments", "expected"),
        [
            (["job.yaml"], "rljob run job.yaml --resume"),
            (["job.yaml", "--restart"], "rljob run job.yaml --resume"),
            (["job.yaml", "--auto-resume", "--no-live"], "rljob run job.yaml --no-live --resume"),
            (
                ["--share", "my job.yaml", "--output", "a b"],
                "rljob run 'my job.yaml' --output 'a b' --share --resume",
            ),
            (["$HOME;x.yaml"], "rljob run '$HOME;x.yaml' --resume"),
        ],
    )
    def test_the_command_that_goes_on(self, arguments, expected):
        options = parser(None).parse_args(["run", *arguments])
        assert resume_command("rljob", options) == expected
        again = parser(None).parse_args(["run", *shlex.split(expected)[2:]])
        assert (again.file, again.output, again.share, again.no_live, again.begin) == (
            options.file, options.output, options.share, options.no_live, Begin.RESUME,
        )  # fmt: skip


def write(path: Path, changes: dict[str, object] | None = None) -> Path:
    path.write_text(yaml.safe_dump(job(changes), sort_keys=False))
    return path
