"""A whole run whose disk is full, and whose data is not what it was: one line says so, nothing is lost."""

from pathlib import Path

import pytest

from rljob_runtime.trainer.checkpoint import newest
from tests.support.disks import fill, small_disk
from tests.support.runtime.runs import ONE_ENGINE, PROMPTS, Run, held, manifest, running

STEPS = 16

pytestmark = pytest.mark.timeout(900)


def told(run: Run) -> str:
    """The one line that says why the run ended."""
    text = run.log.read_text()
    assert "Traceback" not in text
    (line,) = [line for line in text.splitlines() if line.startswith("rljob: ")]
    return line


def assert_goes_on_to_the_end(file: Path) -> None:
    """Every prompt is trained once over the whole job, and the model and the report are there."""
    with running(file, "--resume") as run:
        assert run.end(300) == 0, run.log.read_text()
        uids = sorted(uid for uids in run.trained().values() for uid in uids)
        assert uids == list(range(STEPS * PROMPTS))
        assert (run.folder / "model" / "model.safetensors").exists()
        assert (run.folder / "report.html").exists()


def test_a_disk_that_is_full_at_a_checkpoint(tmp_path: Path) -> None:
    """A checkpoint takes 1.6 MB. The earlier one stays whole, and with room the job goes on from it, but not
    with other data, which is refused before anything is started."""
    rows = [f'{{"prompt": "{"abcdefgh"[index % 8]}", "answer": "a"}}\n' for index in range(STEPS * PROMPTS)]
    data = tmp_path / "train.jsonl"
    data.write_text("".join(rows))
    with small_disk(tmp_path / "disk", megabytes=24) as disk:
        file, _ = manifest(
            tmp_path,
            STEPS,
            ONE_ENGINE,
            data={"jsonl": {"path": "train.jsonl"}, "maxPromptTokens": 8},
            checkpoint={"everySteps": 3, "path": str(disk)},
            **held(tmp_path, 3),
        )
        with running(file) as run:
            run.wait(lambda: newest(disk) is not None, "checkpoint", 300)
            ballast = fill(disk, left=400_000)
            run.let()
            assert run.end(300) == 1, run.log.read_text()
            kept = newest(disk)
            assert kept is not None
            line = told(run)
            assert f"could not be written to {disk} (" in line
            assert (
                f"{kept.name} before it is whole: make room, or set checkpoint.path to a larger disk" in line
            )
            assert not list(disk.glob("*.tmp"))
        run.log.unlink()
        ballast.unlink()
        data.write_text("".join(rows[1:]))
        assert_other_data_is_refused(file, data)
        data.write_text("".join(rows))
        assert_goes_on_to_the_end(file)


def assert_other_data_is_refused(file: Path, data: Path) -> None:
    with running(file, "--resume") as run:
        assert run.end(300) == 2, run.log.read_text()
        line = told(run)
        assert f"{data} is not the data that the run began with ({STEPS * PROMPTS} rows then, " in line
        assert "put the earlier data back to go on with --resume, or begin anew with --restart" in line
    run.log.unlink()


def test_a_run_folder_on_a_full_disk(tmp_path: Path) -> None:
    """Also the log, the metrics, the events and the report have no room then."""
    with small_disk(tmp_path / "run", megabytes=32) as disk:
        file, _ = manifest(tmp_path, STEPS, ONE_ENGINE, **held(tmp_path, 3))
        with running(file) as run:
            run.wait(lambda: newest(disk / "checkpoints") is not None, "checkpoint", 300)
            ballast = fill(disk, left=0)
            run.let()
            assert run.end(300) == 1, run.log.read_text()
            assert "make room" in told(run)
            assert newest(disk / "checkpoints") is not None
        run.log.unlink()
        ballast.unlink()
        assert_goes_on_to_the_end(file)
