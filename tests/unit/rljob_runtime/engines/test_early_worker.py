"""A rollout worker that is begun before it is known what it is to run, without Ray."""

import os
from pathlib import Path

import pytest

from rljob_runtime.engines import early_core, early_worker
from rljob_runtime.engines.vllm_extension import HOST_VARIABLE
from rljob_runtime.net.keys import Keyring


@pytest.mark.parametrize("missing", ["no_such_module_anywhere", "unfit"])
def test_it_begins_an_engine_core_and_then_is_what_it_is_told(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, missing: str
) -> None:
    (tmp_path / "unfit.py").write_text("raise RuntimeError('libfoo.so is too old')")
    monkeypatch.syspath_prepend(tmp_path)
    begun: list[tuple[str, str]] = []
    monkeypatch.setattr(
        early_core, "begin", lambda accelerator: begun.append((accelerator, os.environ[HOST_VARIABLE]))
    )
    # What cannot be imported is told where it is needed.
    monkeypatch.setattr(early_worker, "_IMPORTED", (missing,))
    for name in ("OMP_NUM_THREADS", HOST_VARIABLE):
        # Put back in the end.
        monkeypatch.setenv(name, "")
    before = dict(os.environ)
    try:
        worker = early_worker.RolloutWorker("cpu", "float32", 3)
        assert begun == [("cpu", str(os.getpid()))], "with the environment that vLLM is imported with"
        assert os.environ["OMP_NUM_THREADS"] == "3"
        keys, _ = Keyring().pair("engines")
        worker.begin(f"{__name__}:made", {"seed": 7}, "fast-0", "ipc:///nowhere", keys)
        assert worker._engine == ("fast-0", 7)
        # What was imported before, and what its engine's factory imported.
        assert [each.part for each in worker._start.parts] == ["process", "imports", "imports"]
    finally:
        os.environ.clear()
        os.environ.update(before)


def made(name: str, seed: int) -> tuple[str, int]:
    """Stands for an engine."""
    return name, seed
