"""The exported model is the trainer's, whoever wrote the checkpoint and whoever loads the model."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from peft import PeftModel
from safetensors import safe_open
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from rljob_api import RLJob
from rljob_runtime.cli import main
from rljob_runtime.data.tokenizer import CharacterTokenizer, FolderTokenizer, TextTokenizer
from rljob_runtime.driver import export as model_export
from rljob_runtime.driver.export import export, keep_model_files
from tests.support.runtime.rank_processes import RankProcesses
from tests.support.runtime.trainer_ranks import (
    EXPERTS,
    groups,
    model_folder,
    stored_version,
    trainer_job,
    worker,
)

pytestmark = pytest.mark.timeout(300)
"""More than `RankProcesses` waits for a result."""

RANKS = 2
LETTERS = CharacterTokenizer("abcdefgh")
TOKENS = torch.arange(24).reshape(2, 12) % 32

ADAPTER: dict[str, Any] = {
    "adapter": {"rank": 4, "alpha": 8},
    "model": {"headDim": 32},
    "rollout": {"engine": {"vllm": {}}},
    "optimizer": {"learningRate": 1e-2},
}
JOBS: dict[str, dict[str, Any]] = {
    "float32": {},
    "tied embeddings": {"model": {"tieWordEmbeddings": True}},
    "bfloat16": {"policy": {"dtype": "bfloat16"}},
}


def run_of(job: RLJob, folder: Path, tokenizer: TextTokenizer = LETTERS) -> tuple[Path, Path]:
    """A run's folder as it is when training begins, and its initial model."""
    run = folder / "run"
    run.mkdir()
    (run / ".lock").touch()
    (run / "job.yaml").write_text(yaml.safe_dump(job.model_dump(by_alias=True, exclude_none=True)))
    initial = model_folder(job, folder / "initial")
    keep_model_files(initial, tokenizer, run)
    return run, initial


def train(
    rank: int, world_size: int, store: Path | None, job: dict[str, Any], initial: Path, run: Path
) -> dict[str, Any] | None:
    """Train and save two steps; rank 0's weights after the second."""
    with worker(trainer_job(**job), initial, rank, world_size, store) as trainer:
        for step in (0, 1):
            trainer.train_step(step, step, groups(4, seed=step, version=step))
            trainer.save_checkpoint(run / "checkpoints", step + 1, b"")
        weights = {name: tensor.float().numpy().copy() for name, tensor in trainer.weights()}
    return weights if rank == 0 else None


def logits(model: Any) -> torch.Tensor:
    with torch.inference_mode():
        return model(TOKENS).logits.float()


@pytest.mark.parametrize("changes", JOBS.values(), ids=JOBS)
@pytest.mark.parametrize("count", [1, 2])
def test_it_is_the_trainers_model(
    ranks: RankProcesses, tmp_path: Path, changes: dict[str, Any], count: int
) -> None:
    """Weight by weight and in its logits, in the number format of the job."""
    job = trainer_job(**changes)
    run, initial = run_of(job, tmp_path)
    expected = ranks.run(count, train, changes, initial, run)[0]
    assert export(run, tmp_path / "exported") == 2
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "exported").eval()
    assert str(model.dtype) == f"torch.{job.spec.training.model.dtype}"
    found = model.state_dict()
    for name, weight in expected.items():
        np.testing.assert_array_equal(found[name].float().numpy(), weight, err_msg=name)
    with safe_open(tmp_path / "exported" / "model.safetensors", "pt") as file:
        assert set(file.keys()) == expected.keys() - {"lm_head.weight"} or set(file.keys()) == expected.keys()
        assert file.metadata() == {"format": "pt", "step": "2"}
    original = AutoModelForCausalLM.from_pretrained(initial, dtype=model.dtype).eval()
    assert not torch.equal(logits(model), logits(original))
    original.load_state_dict(
        {name: torch.from_numpy(weight) for name, weight in expected.items()}, strict=False
    )
    original.tie_weights()
    assert torch.equal(logits(model), logits(original))


def test_experts_are_exported_one_by_one(tmp_path: Path, small_files: None) -> None:
    """As the folder that the model came from has them, spread over several files."""
    job = trainer_job(**EXPERTS)
    run, initial = run_of(job, tmp_path)
    expected = train(0, 1, None, EXPERTS, initial, run)
    assert expected is not None
    export(run, tmp_path / "exported")
    found = {}
    for file in (tmp_path / "exported").glob("*.safetensors"):
        found |= load_file(file)
    index = json.loads((tmp_path / "exported" / "model.safetensors.index.json").read_text())
    assert set(index["weight_map"]) == found.keys() == expected.keys()
    assert "model.layers.1.mlp.experts.3.down_proj.weight" in found
    for name, weight in expected.items():
        np.testing.assert_array_equal(found[name].numpy(), weight, err_msg=name)
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "exported").eval()
    original = AutoModelForCausalLM.from_pretrained(initial).eval()
    assert not torch.equal(logits(model), logits(original))


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with checkpoints of steps 1 and 2."""
    folder = tmp_path_factory.mktemp("trained")
    run, initial = run_of(trainer_job(), folder)
    train(0, 1, None, {}, initial, run)
    return run


@pytest.fixture
def small_files(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(model_export, "_FILE_BYTES", 20_000)
    yield


def test_a_large_model_is_in_several_files(trained: Path, tmp_path: Path, small_files: None) -> None:
    export(trained, tmp_path / "model")
    files = sorted(path.name for path in (tmp_path / "model").glob("*.safetensors"))
    assert len(files) > 2
    assert files[-1] == f"model-{len(files):05d}-of-{len(files):05d}.safetensors"
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "model")
    with safe_open(tmp_path / "model" / files[-1], "pt") as file:
        for name in file.keys():  # noqa: SIM118
            assert torch.equal(model.state_dict()[name], file.get_tensor(name))
    index = json.loads((tmp_path / "model" / "model.safetensors.index.json").read_text())
    assert set(index["weight_map"]) == set(model.state_dict())
    assert index["metadata"]["total_size"] == sum(
        4 * tensor.numel() for tensor in model.state_dict().values()
    )


def test_the_character_tokenizer_comes_along(trained: Path, tmp_path: Path) -> None:
    export(trained, tmp_path / "model")
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "model")
    assert tokenizer("cab")["input_ids"] == LETTERS.encode("cab").tolist()
    assert tokenizer.decode(LETTERS.encode("cab", rendered=True)) == "cab"
    assert (tokenizer.eos_token_id, tokenizer.pad_token_id) == (LETTERS.eos_id, LETTERS.pad_id)


def test_the_model_can_be_trained_further(trained: Path, tmp_path: Path) -> None:
    """It is what `model.path` takes, tokenizer included."""
    export(trained, tmp_path / "model")
    assert FolderTokenizer(tmp_path / "model").encode("cab").tolist() == LETTERS.encode("cab").tolist()
    with worker(trainer_job(), tmp_path / "model") as trainer:
        assert trainer.train_step(0, 0, groups(4)).tokens > 0


def test_any_checkpoint_from_the_command_line(
    trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for step in (1, 2):
        assert main(["export", str(trained), str(tmp_path / f"of-{step}"), "--step", str(step)]) == 0
    assert main(["export", str(trained), str(tmp_path / "newest")]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == f"{tmp_path / 'newest'}: the model of step 2"
    first, second, newest = (
        load_file(tmp_path / name / "model.safetensors") for name in ("of-1", "of-2", "newest")
    )
    for name in first:
        assert not torch.equal(first[name], second[name])
        assert torch.equal(second[name], newest[name])


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["{run}", "{new}", "--step", "7"], "has no checkpoint of step 7; it has those of 1, 2."),
        (["{run}", "{there}"], "exists already; name a folder that does not."),
        (["{there}", "{new}"], "holds no run; give the folder that `rljob run` wrote."),
    ],
    ids=["another step", "a folder that is there", "no run"],
)
def test_refusals_write_nothing(
    trained: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    words: str,
) -> None:
    there, new = tmp_path / "there", tmp_path / "new"
    there.mkdir()
    places = {"run": trained, "new": new, "there": there}
    assert main(["export", *(argument.format(**places) for argument in arguments)]) == 2
    error = capsys.readouterr().err
    assert words in error and error.count("\n") == 1
    assert sorted(tmp_path.iterdir()) == [there] and not list(there.iterdir())


def test_a_run_without_a_checkpoint(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run, _ = run_of(trainer_job(), tmp_path)
    assert main(["export", str(run), str(tmp_path / "model")]) == 2
    assert "has no checkpoint yet" in capsys.readouterr().err


def test_a_damaged_checkpoint_leaves_the_earlier_model(
    tmp_path: Path, trained: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run, initial = run_of(trainer_job(), tmp_path)
    train(0, 1, None, {}, initial, run)
    export(run, run / "model", 1)
    before = (run / "model" / "model.safetensors").read_bytes()
    for shard in (run / "checkpoints" / "step_2").glob("*.distcp"):
        shard.write_bytes(shard.read_bytes()[:100])
    with pytest.raises(model_export.CheckpointError, match="step_2 cannot be loaded"):
        export(run, run / "model")
    assert (run / "model" / "model.safetensors").read_bytes() == before
    export(run, run / "model", 1)
    assert not [path.name for path in run.iterdir() if path.suffix in (".tmp", ".old")]
    assert main(["export", str(run), str(tmp_path / "other")]) == 1
    assert "damaged" in capsys.readouterr().err


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_an_adapter_is_exported_alone_and_in_the_model(
    tmp_path: Path, dtype: str, capsys: pytest.CaptureFixture[str]
) -> None:
    job = trainer_job(**ADAPTER, policy={"dtype": dtype})
    run, initial = tmp_path / "run", model_folder(job, tmp_path / "initial")
    run.mkdir()
    (run / "job.yaml").write_text(yaml.safe_dump(job.model_dump(by_alias=True, exclude_none=True)))
    keep_model_files(initial, LETTERS, run, job.spec.training.adapter)
    with worker(job, initial) as trainer:
        for step in (0, 1):
            trainer.train_step(step, step, groups(4, seed=step, version=step))
        published = load_file(Path(stored_version(trainer, 2).location) / "adapter_model.safetensors")
        trainer.save_checkpoint(run / "checkpoints", 2, b"")
    assert main(["export", str(run), str(tmp_path / "adapter"), "--adapter"]) == 0
    assert "the adapter of step 2" in capsys.readouterr().out
    alone = load_file(tmp_path / "adapter" / "adapter_model.safetensors")
    assert alone.keys() == published.keys()
    assert all(torch.equal(alone[name], published[name]) for name in alone), "what engines had"
    assert main(["export", str(run), str(tmp_path / "model")]) == 0
    merged = AutoModelForCausalLM.from_pretrained(tmp_path / "model").eval()
    assert str(merged.dtype) == f"torch.{dtype}"
    base = AutoModelForCausalLM.from_pretrained(initial, dtype=merged.dtype).eval()
    before = logits(base)
    adapted = PeftModel.from_pretrained(base, tmp_path / "adapter").eval()
    assert (logits(adapted) - before).abs().max() > 1e-3
    torch.testing.assert_close(
        logits(merged), logits(adapted), atol=1e-5 if dtype == "float32" else 0.05, rtol=0
    )
    initial.rename(tmp_path / "elsewhere")
    assert main(["export", str(run), str(tmp_path / "later")]) == 2
    assert "not at" in (said := capsys.readouterr().err) and "--adapter" in said
    assert main(["export", str(run), str(tmp_path / "still"), "--adapter"]) == 0


def test_a_run_without_an_adapter_has_none_to_export(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    job = trainer_job()
    run, initial = run_of(job, tmp_path)
    with worker(job, initial) as trainer:
        trainer.save_checkpoint(run / "checkpoints", 1, b"")
    assert main(["export", str(run), str(tmp_path / "adapter"), "--adapter"]) == 2
    assert "has no adapter: it trained all weights" in capsys.readouterr().err
