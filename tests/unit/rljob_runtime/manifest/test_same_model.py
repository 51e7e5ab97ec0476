"""Whether a job asks for the model that a run began with: by config.json alone."""

import json
from pathlib import Path
from typing import Any

import pytest

from rljob_api import RLJob
from rljob_api.model import RandomModel
from rljob_runtime.manifest.same_model import config_of, of_folder, of_random, other_adapter
from rljob_runtime.trainer.model import save_initial_model
from tests.support.jobs import job

TOKENS = 40
BACK = "set it back to go on with --resume, or begin anew with --restart, or beside it with another --output."
EXPERTS = {"architecture": "qwen3_moe", "experts": {"count": 4}}

OTHERS: dict[str, tuple[dict[str, Any], dict[str, Any], list[str]]] = {
    "the same": ({}, {}, []),
    "its default vocabulary, written out": ({"vocabularySize": 64}, {}, []),
    "layers": ({"layers": 4}, {}, ["layers: 4, and the run began with 2: "]),
    "several": (
        {"hiddenSize": 128, "layers": 1, "maxPositionEmbeddings": 4096},
        {},
        [
            "layers: 1, and the run began with 2: ",
            "hiddenSize: 128, and the run began with 64: ",
            "maxPositionEmbeddings: 4096, and the run began with 2048: ",
        ],
    ),
    "tied": ({"tieWordEmbeddings": True}, {}, ["tieWordEmbeddings: true, and the run began with false: "]),
    "vocabulary": ({"vocabularySize": 96}, {}, ["vocabularySize: 96, and the run began with 64: "]),
    "another family, and nothing else of it": (
        {"architecture": "llama", "layers": 4},
        {},
        ["architecture: llama, and the run began with qwen3: "],
    ),
    "experts": (EXPERTS, {}, ["architecture: qwen3_moe, and the run began with qwen3: "]),
    "none any more": ({}, EXPERTS, ["architecture: qwen3, and the run began with qwen3_moe: "]),
    "more experts": (
        {**EXPERTS, "experts": {"count": 8, "perToken": 4}},
        EXPERTS,
        ["experts.count: 8, and the run began with 4: ", "experts.perToken: 4, and the run began with 2: "],
    ),
}


@pytest.mark.parametrize(("wanted", "began", "told"), OTHERS.values(), ids=OTHERS)
def test_a_random_model(wanted: dict[str, Any], began: dict[str, Any], told: list[str]) -> None:
    before = config_of(RandomModel.model_validate(began), TOKENS)
    found = [str(each) for each in of_random(RandomModel.model_validate(wanted), TOKENS, before)]
    assert found == [f"spec.training.model.random.{each}{BACK}" for each in told]


def test_a_vocabulary_that_follows_from_the_tokenizer() -> None:
    before = config_of(RandomModel(), TOKENS)
    assert of_random(RandomModel(), 64, before) == []
    (found,) = of_random(RandomModel(), 65, before)
    assert str(found) == (
        "spec.training.model.random.vocabularySize: 96 by default, for a tokenizer of 65 tokens, and the run "
        f"began with 64: {BACK.replace('it', 'the tokenizer', 1)}"
    )


@pytest.mark.parametrize(
    "shape",
    [{}, {"architecture": "llama"}, {"architecture": "qwen2", "hiddenSize": 128}, EXPERTS],
    ids=["qwen3", "llama", "qwen2", "qwen3_moe"],
)
def test_the_config_of_a_random_model_is_what_its_folder_says(tmp_path: Path, shape: dict[str, Any]) -> None:
    made = RLJob.model_validate(job({"training.model": {"random": shape}}))
    save_initial_model(made, TOKENS, 0, 1, 2, tmp_path)
    said = json.loads((tmp_path / "config.json").read_text())
    # Each field is compared: a change of any is seen.
    for name, value in config_of(RandomModel.model_validate(shape), TOKENS).items():
        assert of_random(RandomModel.model_validate(shape), TOKENS, said) == []
        known = name if name in said else "num_local_experts"
        other = {**said, known: not value if isinstance(value, bool) else f"not {value}"}
        assert len(of_random(RandomModel.model_validate(shape), TOKENS, other)) == 1, name


SMALL = {"model_type": "llama", "num_hidden_layers": 2, "hidden_size": 64, "vocab_size": 64}

FOLDERS: dict[str, tuple[dict[str, Any], str | None]] = {
    "the same": ({}, None),
    "what no weight has its shape from": ({"max_position_embeddings": 9, "rope_theta": 1.0}, None),
    "what one of them leaves out": ({"head_dim": 32, "num_key_value_heads": None}, None),
    "layers and a family": (
        {"num_hidden_layers": 4, "model_type": "qwen3"},
        "model_type qwen3 where that has llama, num_hidden_layers 4 where that has 2",
    ),
    "of a model that sees, its part for text": (
        {"text_config": {"hidden_size": 128}},
        "hidden_size 128 where that has 64",
    ),
}


@pytest.mark.parametrize(("changes", "told"), FOLDERS.values(), ids=FOLDERS)
def test_a_folder(changes: dict[str, Any], told: str | None) -> None:
    found = [str(each) for each in of_folder("models/b", SMALL | changes, SMALL)]
    expected = f"spec.training.model.path: models/b is not the model that the run began with ({told}): {BACK}"
    assert found == ([] if told is None else [expected])


@pytest.mark.parametrize(
    ("was", "wanted", "told"),
    [
        (None, None, None),
        ("rank 4", "rank 4", None),
        (None, "rank 4", "an adapter (rank 4), and the checkpoint has all weights, without an adapter"),
        ("rank 4", None, "all weights, without an adapter, and the checkpoint has an adapter (rank 4)"),
        ("rank 4", "rank 8", "an adapter (rank 8), and the checkpoint has an adapter (rank 4)"),
    ],
)
def test_an_adapter(was: str | None, wanted: str | None, told: str | None) -> None:
    found = other_adapter(was, wanted)
    expected = None if told is None else f"spec.training.adapter: the job asks for {told}: {BACK}"
    assert (None if found is None else str(found)) == expected
