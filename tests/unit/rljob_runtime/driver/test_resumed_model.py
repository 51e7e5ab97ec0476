"""The model of a run that goes on: what is compared with what the job asks for, and where it is found."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from shutil import rmtree
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
import yaml
from safetensors.numpy import save_file
from torch.distributed.checkpoint.state_dict_saver import save as save_tensors

from rljob_api import RLJob
from rljob_runtime.cli.checking import Asked, examine
from rljob_runtime.data.tokenizer import CharacterTokenizer
from rljob_runtime.driver.model_folder import CHECKPOINTS, engine_model
from rljob_runtime.driver.resume import ResumeRefused
from rljob_runtime.driver.resumed_model import check_model, model_problems
from rljob_runtime.groups.ledger import Ledger
from rljob_runtime.manifest.load import read
from rljob_runtime.run_folder import RunOptions
from rljob_runtime.trainer import checkpoint
from rljob_runtime.trainer.checkpoint import Head
from rljob_runtime.weights.sampled_digest import sampled_digest
from tests.support.jobs import job
from tests.support.runtime.resumes import saved

LAYERS = "training.model.random.layers"
ADAPTER = {"training.adapter": {"rank": 4}}
LARGER = {"training.adapter": {"rank": 8, "targetModules": ["q_proj"]}}
WORDS = "rank 4, alpha 32, for all linear layers"


def wanted(**changes: Any) -> RLJob:
    return RLJob.model_validate(job(changes))


def run_of(folder: Path, adapter: str | None = None, began_with: str | None = None) -> Path:
    """A run of two layers, stopped after a checkpoint."""
    (folder / "model_files").mkdir(parents=True)
    (folder / "model_files" / "config.json").write_text(json.dumps({"num_hidden_layers": 2}))
    partial = checkpoint.begin(folder / CHECKPOINTS, 3)
    state = msgspec.structs.replace(saved(3, Ledger(12), []), adapter=adapter, began_with=began_with)
    checkpoint.write_head(partial, Head(updates=3), msgspec.msgpack.encode(state))
    checkpoint.finish(partial, keep=2)
    return folder


@pytest.mark.parametrize(
    ("adapter", "changes", "told"),
    [
        (None, {}, []),
        (WORDS, ADAPTER, []),
        (None, {LAYERS: 4}, ["spec.training.model.random.layers: 4, and the run began with 2"]),
        (None, ADAPTER, ["spec.training.adapter: the job asks for an adapter (rank 4"]),
        (
            WORDS,
            LARGER,
            [
                "spec.training.adapter: the job asks for an adapter (rank 8, alpha 32, for q_proj), and the "
                f"checkpoint has an adapter ({WORDS})"
            ],
        ),
        (
            WORDS,
            {LAYERS: 4},
            ["spec.training.model.random.layers: 4", "spec.training.adapter: the job asks for all weights"],
        ),
    ],
)
def test_what_a_run_goes_on_with(
    tmp_path: Path, adapter: str | None, changes: dict[str, Any], told: list[str]
) -> None:
    run = run_of(tmp_path / "run", adapter)
    found = model_problems(wanted(**changes), run, tmp_path)
    assert len(found) == len(told)
    assert all(str(each).startswith(words) for each, words in zip(found, told, strict=True))


def test_the_driver_refuses_it_in_one_line(tmp_path: Path) -> None:
    run = run_of(tmp_path / "run")
    check_model(wanted(), run, tmp_path)
    with pytest.raises(ResumeRefused, match=r"^spec.*layers: 4, and .*\. spec.training.adapter: .*--output$"):
        check_model(wanted(**{LAYERS: 4}, **ADAPTER), run, tmp_path)


def test_without_a_checkpoint_or_what_says_the_models_shape_nothing_is_told(tmp_path: Path) -> None:
    run = run_of(tmp_path / "run")
    (run / "model_files" / "config.json").write_text("[")
    assert model_problems(wanted(**{LAYERS: 4}), run, tmp_path) == []
    assert model_problems(wanted(**{LAYERS: 4}), tmp_path / "another", tmp_path) == []


KL = {"training.algorithm.kl": {"coefficient": 0.1}}
PATH = {"training.model": {"path": "m"}}
ITS = "that the run began with, to which its adapter belongs: put those back to go on with --resume, or"
REFERENCE = "that the run began with, which are the reference of algorithm.kl: put those back to go on with"


def weights(folder: Path, start: float = 0.0) -> Path:
    """A model's folder, with weights from `start` on."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text('{"model_type": "llama", "num_hidden_layers": 2}')
    save_file(
        {"a": np.arange(start, start + 9000, dtype=np.float32), "b": np.ones(3)}, folder / "model.safetensors"
    )
    return folder


@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize(
    ("now", "adapter", "changes", "told"),
    [
        ("the same", WORDS, ADAPTER, None),
        ("other", WORDS, ADAPTER, f"has other weights than those {ITS}"),
        ("other", None, {}, None),
        ("the same", None, KL, None),
        ("other", None, KL, f"has other weights than those {REFERENCE}"),
        ("other", WORDS, ADAPTER | KL, f"has other weights than those {ITS}"),
        # Told by the adapter, which is what was changed.
        ("other", None, ADAPTER, "the job asks for an adapter"),
    ],
)
@pytest.mark.parametrize("form", ["path", "random"])
def test_weights_that_the_run_still_needs_are_those_that_it_began_with(
    tmp_path: Path, form: str, now: str, adapter: str | None, changes: dict[str, Any], told: str | None,
    known: bool,
) -> None:  # fmt: skip
    """Without an adapter and a penalty the checkpoint has all that counts, and any weights may lie there."""
    model = tmp_path / "m" if form == "path" else tmp_path / "run" / "initial_model"
    run = run_of(tmp_path / "run", adapter, sampled_digest(weights(model)) if known else None)
    weights(model, 0.0 if now == "the same" else 1.0)
    asked = {"training.tokenizer": {"characters": {}}, **(PATH if form == "path" else {}), **changes}
    found = [str(each) for each in model_problems(wanted(**asked), run, tmp_path)]
    if told is None or not (known or told.startswith("the job")):
        assert found == []
    else:
        assert len(found) == 1 and told in found[0]
        assert found[0].startswith(
            "spec.training.adapter" if "asks" in told else f"spec.training.model.{form}"
        )


def test_a_random_model_that_is_gone_is_not_made_again_where_it_is_needed(tmp_path: Path) -> None:
    run = run_of(tmp_path / "run", WORDS, "a digest")
    (found,) = model_problems(wanted(**ADAPTER), run, tmp_path)
    assert f"{run}/initial_model does not have the weights {ITS}" in str(found)


def test_the_driver_gets_what_the_run_began_with(tmp_path: Path) -> None:
    assert check_model(wanted(), run_of(tmp_path / "run", None, "a digest"), tmp_path) == "a digest"
    assert check_model(wanted(), tmp_path / "another", tmp_path) is None


@pytest.mark.parametrize("damaged", [False, True])
def test_it_is_told_when_the_manifest_is_checked(tmp_path: Path, damaged: bool) -> None:
    """With its line; of a checkpoint that cannot be read nothing: that is no error of the manifest."""
    run = run_of(tmp_path / "run")
    if damaged:
        (run / CHECKPOINTS / "step_3" / "extra.bin").write_bytes(b"\x81")
    file = tmp_path / "job.yaml"
    file.write_text(yaml.safe_dump(job({LAYERS: 4, "training.rollout.engine": {"torch": {}}})))
    line = file.read_text().splitlines().index("        layers: 4") + 1
    found = examine(Asked(read(file), run, share=False, memory=2**50, resumes=True))
    expected = [] if damaged else [f"{file}:{line}  spec.training.model.random.layers: 4, and the run began"]
    assert found.broken is None
    assert [str(each)[: len(words)] for each, words in zip(found.errors, expected, strict=True)] == expected
    assert examine(Asked(read(file), run, share=False, memory=2**50)).errors == ()


@pytest.mark.parametrize(
    ("damage", "unusable", "warning"),
    [
        (lambda folder: None, None, None),
        (lambda folder: rmtree(folder), None, "has no checkpoint: the run begins again with step 1"),
        (
            lambda folder: (folder / "extra.bin").unlink(),
            "loaded (No such file or directory)",
            None,
        ),
        (
            lambda folder: (folder / ".metadata").unlink(),
            "loaded (No such file or directory)",
            None,
        ),
        (lambda folder: (folder / "__0_0.distcp").unlink(), "(__0_0.distcp is not there)", None),
        (lambda folder: os.truncate(folder / "__0_0.distcp", 9), "(__0_0.distcp is cut off)", None),
        # The job is refused for it.
        (lambda folder: (folder.parent / "latest").write_text("?"), None, None),
        (lambda folder: (folder / ".metadata").write_bytes(b"x"), "cannot be loaded (", None),
    ],
    ids=[
        "none",
        "no checkpoint",
        "no head",
        "no table",
        "no tensors",
        "half the tensors",
        "a pointer to nothing",
        "no table of this kind",
    ],
)
def test_a_checkpoint_that_cannot_be_loaded_is_told_before_anything_is_started(
    tmp_path: Path, damage: Callable[[Path], None], unusable: str | None, warning: str | None
) -> None:
    run = run_of(tmp_path / "run")
    folder = run / CHECKPOINTS / "step_3"
    save_tensors({"model.weight": torch.zeros(64)}, checkpoint_id=folder, no_dist=True)
    damage(folder)
    file = tmp_path / "job.yaml"
    file.write_text(yaml.safe_dump(job({"training.rollout.engine": {"torch": {}}})))
    found = examine(Asked(read(file), run, share=False, memory=2**50, resumes=True))
    assert (found.broken, found.errors) == (None, ())
    assert (unusable or "") in (found.unusable or "")
    assert (found.unusable is None) == (unusable is None)
    assert [warning in each for each in found.warnings] == ([True] if warning else [])
    assert examine(Asked(read(file), run, share=False, memory=2**50)).unusable is None


def test_a_random_model_of_another_shape_is_made_again(tmp_path: Path) -> None:
    """Of a run that has no checkpoint yet."""
    options = RunOptions(tmp_path, tmp_path, resume=True, live=False)
    tokenizer = CharacterTokenizer("abc")
    for layers, made in ((1, True), (1, False), (2, True)):
        folder = engine_model(wanted(**{LAYERS: layers}), options, tokenizer)
        assert json.loads((folder / "config.json").read_text())["num_hidden_layers"] == layers
        assert (folder / "seen").exists() is not made
        (folder / "seen").touch()
