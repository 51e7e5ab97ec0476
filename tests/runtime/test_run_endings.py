"""A whole run that a person must act on ends with one line that says why, and the exit code for it."""

import json
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file, save_file

from rljob_runtime.exit_codes import ExitCode
from tests.support.runtime.runs import ONE_ENGINE, manifest, running
from tests.support.runtime.tiny_models import tiny_model


def configured(folder: Path, **changes: Any) -> None:
    """Change config.json of the model in a folder."""
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | changes))


def overflowing(folder: Path) -> None:
    """The same function of the weights, but the gradient's norm is above the largest float32."""
    weights = load_file(folder / "model.safetensors")
    weights["model.norm.weight"] *= 1e-25
    weights["lm_head.weight"] *= 1e25
    save_file(weights, folder / "model.safetensors", {"format": "pt"})


WINDOW = {
    "use_sliding_window": True,
    "sliding_window": 8,
    "layer_types": ["full_attention", "sliding_attention"],
}


@pytest.mark.timeout(300)
def test_one_line_and_the_exit_code_for_it(tmp_path: Path) -> None:
    overflowing(tiny_model(tmp_path / "model"))
    file, _ = manifest(tmp_path, 4, pools=ONE_ENGINE, model={"path": "model"})
    with running(file) as run:
        assert run.end(250) == ExitCode.FAILED, run.log.read_text()
        (told,) = [line for line in run.log.read_text().splitlines() if line.startswith("rljob: ")]
        assert "step 1: the gradient is not finite, so the weights were left as they are: lower" in told
        assert "Traceback" not in run.log.read_text()
        assert run.trained() == {}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (
            {"final_logit_softcapping": 30.0},
            ("final_logit_softcapping 30.0 in config.json, which", "is not supported by the trainer: write"),
        ),
        (
            WINDOW,
            ("spec.training.rollout.engine.torch: ", "the torch engine has no sliding-window attention"),
        ),
    ],
    ids=["the trainer", "the engine"],
)
def test_a_model_that_is_not_supported_is_refused_before_anything_starts(
    tmp_path: Path, changes: dict[str, Any], words: tuple[str, ...]
) -> None:
    configured(tiny_model(tmp_path / "model"), **changes)
    file, _ = manifest(tmp_path, 4, pools=ONE_ENGINE, model={"path": "model"})
    with running(file) as run:
        assert run.end(250) == ExitCode.REFUSED, run.log.read_text()
        told = run.log.read_text()
        assert all(each in told for each in words)
        assert "Traceback" not in told and told.splitlines()[-1] == "1 error. Nothing was started."
        assert run.trained() == {}


@pytest.mark.timeout(300)
def test_rewards_that_all_fail(tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text("def score(sample):\n    return {}['answer']\n")
    file, _ = manifest(tmp_path, 4, pools=ONE_ENGINE, reward={"function": "broken:score"})
    with running(file) as run:
        assert run.end(250) == ExitCode.REFUSED, run.log.read_text()
        (told,) = [line for line in run.log.read_text().splitlines() if line.startswith("rljob: ")]
        assert 'training.reward.function: "broken:score" failed for all 8 samples of step 1' in told
        assert "KeyError (broken.py:2, in score) (more in " in told
        assert run.trained() == {}
    printed = (run.folder / "rewards.log").read_text()
    assert "Traceback" in printed and "KeyError: 'answer'" in printed


@pytest.mark.timeout(300)
def test_a_run_that_was_done_says_that_nothing_was_trained(tmp_path: Path) -> None:
    file, _ = manifest(tmp_path, 1, pools=ONE_ENGINE)
    told = "all steps had been trained before: none was trained now"
    for flag, says in (((), 0), (("--resume",), 1)):
        with running(file, *flag) as run:
            assert run.end(250) == ExitCode.DONE, run.log.read_text()
            assert run.log.read_text().count(told) == says
            assert list(run.trained()) == [0]
        run.log.unlink()
