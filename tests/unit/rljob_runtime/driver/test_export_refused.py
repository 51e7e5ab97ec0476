"""A run whose copy of the manifest is damaged, exported."""

from pathlib import Path

import pytest

from rljob_runtime.cli import main
from rljob_runtime.run_folder import LOG, MANIFEST


def test_it_is_told_what_is_wrong_in_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = tmp_path / "run"
    for folder in ("model_files", "checkpoints/step_1"):
        (run / folder).mkdir(parents=True)
    (run / "model_files" / "config.json").write_text("{}")
    (run / LOG).touch()
    (run / MANIFEST).write_text("[")
    assert main(["export", str(run), str(tmp_path / "model")]) == 2
    (told,) = capsys.readouterr().err.splitlines()
    assert told.startswith(f"rljob: {run / MANIFEST}:") and "Nothing was started" not in told
    assert told.endswith(".") and not told.endswith("..")
