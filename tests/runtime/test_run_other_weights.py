"""A whole run whose model is trained again, or replaced, between a stop and a resume."""

from pathlib import Path

import pytest
import yaml
from safetensors.torch import load_file, save_file

from rljob_runtime.exit_codes import ExitCode
from tests.support.runtime.runs import ONE_ENGINE, PROMPTS, manifest, running
from tests.support.runtime.tiny_models import tiny_model


@pytest.mark.timeout(400)
def test_a_reference_with_other_weights_is_refused_and_the_folder_may_move(tmp_path: Path) -> None:
    """Before anything is started, with the field's line; and the run's folder stays as it was."""
    weights = tiny_model(tmp_path / "model") / "model.safetensors"
    file, job = manifest(
        tmp_path, 4, pools=ONE_ENGINE, model={"path": "model"}, algorithm={"kl": {"coefficient": 0.1}}
    )
    with running(file) as run:
        assert run.end(250) == 0, run.log.read_text()
    job["spec"]["training"]["schedule"] = {"epochs": 2, "promptsPerBatch": PROMPTS}
    file.write_text(yaml.safe_dump(job))
    its, kept = weights.read_bytes(), [run.folder / name for name in ("job.yaml", "finished")]
    before = [each.read_bytes() for each in kept]
    tensors = {name: tensor * 1.001 for name, tensor in load_file(weights).items()}
    save_file(tensors, weights, {"format": "pt"})
    with running(file, "--resume") as run:
        assert run.end(250) == ExitCode.REFUSED, run.log.read_text()
        error, last = run.log.read_text().splitlines()[-2:]
    assert "spec.training.model.path: model has other weights than those that the run began with" in error
    assert last == "1 error. Nothing was started."
    assert [each.read_bytes() for each in kept] == before
    weights.write_bytes(its)
    (tmp_path / "model").rename(tmp_path / "moved")
    job["spec"]["training"]["model"] = {"path": "moved"}
    file.write_text(yaml.safe_dump(job))
    with running(file, "--resume") as run:
        assert run.end(250) == 0, run.log.read_text()
        assert len(run.trained()) == 8
