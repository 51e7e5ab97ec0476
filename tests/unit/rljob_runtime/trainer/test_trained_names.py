"""A model is tried once in a process, and one that is refused is refused each time."""

from pathlib import Path
from typing import Any

import pytest
import transformers

from rljob_runtime.job_errors import UnsupportedModel
from rljob_runtime.manifest import model_trial
from rljob_runtime.trainer import trained_names as module
from rljob_runtime.trainer.trained_names import trained_names

SHAPE = {
    "vocab_size": 32, "hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1, "head_dim": 16,
    "num_attention_heads": 2, "num_key_value_heads": 1,
}  # fmt: skip


@pytest.fixture
def tried(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """The folders whose models were tried."""
    found: list[Path] = []
    check = model_trial.check_trainable

    def watched(folder: Path, config: Any) -> None:
        found.append(folder)
        check(folder, config)

    monkeypatch.setattr(model_trial, "check_trainable", watched)
    monkeypatch.setattr(module, "_KNOWN", {})
    return found


def read(folder: Path, family: str = "qwen3", **fields: Any) -> Any:
    """A configuration as it is read from a folder."""
    transformers.AutoConfig.for_model(family, **SHAPE | fields).save_pretrained(folder)
    return transformers.AutoConfig.from_pretrained(folder, local_files_only=True)


def test_a_model_is_tried_once_whatever_folder_it_is_in(tmp_path: Path, tried: list[Path]) -> None:
    one, two, other = (tmp_path / name for name in ("one", "two", "other"))
    names = trained_names(one, read(one))
    assert "model.layers.0.self_attn.q_proj.weight" in names
    assert trained_names(two, read(two)) == names
    assert tried == [one]
    assert trained_names(other, read(other, num_hidden_layers=2)) > names
    assert tried == [one, other]


def test_what_an_architecture_does_not_train_is_left_out(tmp_path: Path, tried: list[Path]) -> None:
    """As the corrections of a router."""
    experts = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}
    config = read(tmp_path, "ernie4_5_moe", moe_num_experts=4, moe_k=2, moe_layer_start_index=0, **experts)
    names = trained_names(tmp_path, config)
    assert any("mlp.experts" in name for name in names)
    assert not any("moe_statics" in name for name in names)


def test_a_model_that_is_refused_is_refused_again(tmp_path: Path, tried: list[Path]) -> None:
    config = read(tmp_path, attn_logit_softcapping=50.0)
    for _ in range(2):
        with pytest.raises(UnsupportedModel, match="attn_logit_softcapping"):
            trained_names(tmp_path, config)
    assert len(tried) == 2
