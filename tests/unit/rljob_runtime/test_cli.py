"""The command line: what is printed where, exit codes, and folders of runs."""

import fcntl
import os
import sys
from importlib.metadata import version
from pathlib import Path

import pytest
import yaml

from rljob_runtime.cli import main
from rljob_runtime.run_folder import FolderRefused, held, holds_run
from tests.support.jobs import job


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


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"training.schedule": {}}, "spec.training.schedule: set exactly one of totalSteps, epochs"),
        ({"training.reward.function": "nowhere:f"}, "spec.training.reward.function: "),
        ({"pools.fastRollout.replicas": 4096}, "spec.pools: the pools have 4097 workers"),
    ],
)
def test_run_refuses_before_it_makes_anything(tmp_path, capsys, changes, words):
    path = write(tmp_path / "job.yaml", changes)
    folder = tmp_path / "run"
    assert main(["run", str(path), "--output", str(folder)]) == 2
    err = capsys.readouterr().err
    assert words in err
    assert "Nothing was started." in err
    assert not folder.exists()


def test_run_refuses_a_folder_with_a_run(tmp_path, capsys):
    path = write(tmp_path / "job.yaml", {"training.rollout.engine": {"torch": {}}})
    folder = tmp_path / "run"
    with held(folder, path, resume=False, restart=False):
        pass
    assert main(["run", str(path), "--output", str(folder)]) == 2
    err = capsys.readouterr().err
    assert err == (
        f"rljob: {folder} holds a run already: go on with it by --resume, or begin anew by --restart, which "
        "keeps it as run.1.\n"
    )


def test_report_of_no_run(tmp_path, capsys):
    assert main(["report", str(tmp_path)]) == 2
    assert "holds no run" in capsys.readouterr().err


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


def test_a_file_that_breaks_the_checks_loses_no_finding_of_others(tmp_path, capsys, monkeypatch):
    def break_on_bad(manifest):
        if manifest.path.stem == "breaks":
            raise RuntimeError("of our own making")
        return []

    monkeypatch.setattr("rljob_runtime.manifest.checks.check", break_on_bad)
    breaks, good = write(tmp_path / "breaks.yaml"), write(tmp_path / "good.yaml")
    wrong = write(tmp_path / "wrong.yaml", {"accelerator": "tpu"})
    with pytest.raises(RuntimeError) as caught:
        main(["validate", str(breaks), str(wrong), str(good)])
    assert caught.value.__notes__ == [f"while {breaks} was checked"]
    out, err = capsys.readouterr()
    assert out == f"{good}: valid\n"
    assert err.startswith(f"{wrong}:") and "'tpu' is not allowed" in err


@pytest.mark.parametrize("arguments", [[], ["train"], ["run"], ["run", "a", "--resume", "--restart"]])
def test_wrong_arguments(arguments, capsys):
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    assert caught.value.code == 2
    assert "usage: rljob" in capsys.readouterr().err


class TestRunFolder:
    def test_a_new_folder_holds_the_manifest(self, tmp_path):
        path = write(tmp_path / "job.yaml")
        with held(tmp_path / "a" / "b", path, resume=False, restart=False) as folder:
            assert folder == tmp_path / "a" / "b"
            assert (folder / "job.yaml").read_text() == path.read_text()

    def test_restart_keeps_earlier_runs(self, tmp_path):
        path = write(tmp_path / "job.yaml")
        for number in range(3):
            with held(tmp_path / "run", path, resume=False, restart=True) as folder:
                assert not (folder / "mark").exists()
                (folder / "mark").write_text(str(number))
        kept = {item.parent.name: item.read_text() for item in tmp_path.glob("*/mark")}
        assert kept == {"run.1": "0", "run.2": "1", "run": "2"}

    def test_resume_goes_on_in_the_folder(self, tmp_path):
        path = write(tmp_path / "job.yaml")
        with held(tmp_path / "run", path, resume=False, restart=False) as folder:
            (folder / "mark").write_text("")
        path.write_text(path.read_text() + "# changed\n")
        with held(tmp_path / "run", path, resume=True, restart=False) as folder:
            assert (folder / "mark").exists()
            assert "# changed" in (folder / "job.yaml").read_text()

    def test_resume_from_the_folders_own_manifest(self, tmp_path):
        with held(tmp_path / "run", write(tmp_path / "job.yaml"), resume=False, restart=False) as folder:
            before = (folder / "job.yaml").read_text()
        with held(folder, folder / "job.yaml", resume=True, restart=False):
            assert (folder / "job.yaml").read_text() == before

    @pytest.mark.parametrize(
        ("content", "resume", "restart", "words"),
        [
            ("nothing", True, False, "holds no run that --resume could go on with"),
            ("a file", False, False, "is a file; name a folder with --output"),
            ("other files", False, False, "holds other files"),
            ("other files", False, True, "holds other files"),
            ("other files", True, False, "holds no run"),
        ],
    )
    def test_refusals_change_nothing(self, tmp_path, content, resume, restart, words):
        folder = tmp_path / "run"
        if content == "a file":
            folder.write_text("")
        elif content == "other files":
            folder.mkdir()
            (folder / "thesis.tex").write_text("")
        before = sorted(tmp_path.rglob("*"))
        manifest = write(tmp_path / "job.yaml")
        with (
            pytest.raises(FolderRefused, match=words),
            held(folder, manifest, resume=resume, restart=restart),
        ):
            pytest.fail("the folder was given out")
        assert sorted(tmp_path.rglob("*")) == sorted([*before, manifest])

    @pytest.mark.parametrize(("resume", "restart"), [(True, False), (False, True)])
    def test_one_process_at_a_time(self, tmp_path, resume, restart):
        manifest = write(tmp_path / "job.yaml")
        with held(tmp_path / "run", manifest, resume=False, restart=False) as folder:
            with (
                pytest.raises(FolderRefused, match="another rljob is running"),
                held(folder, manifest, resume=resume, restart=restart),
            ):
                pytest.fail("the folder was given out twice")
            assert holds_run(folder)
        lock = os.open(folder / ".lock", os.O_RDWR)
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.close(lock)


def write(path: Path, changes: dict[str, object] | None = None) -> Path:
    path.write_text(yaml.safe_dump(job(changes), sort_keys=False))
    return path
