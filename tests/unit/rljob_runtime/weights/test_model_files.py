"""What looking at a model's folder imports, and what it says of a model that has more parts than one."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from rljob_runtime.weights.model_files import examine
from tests.support.runtime.manifest_files import make

_TRANSFORMERS = {
    "__init__.py": (
        "import gc\nprint(gc.isenabled())\n__version__ = '0'\nCONFIG_MAPPING = {'qwen3': None}\n"
        "class AutoConfig:\n    def from_pretrained(*_, **given): raise ValueError\n"
    ),
    "models/__init__.py": "",
    "models/auto/__init__.py": "",
    "models/auto/modeling_auto.py": "MODEL_FOR_CAUSAL_LM_MAPPING_NAMES = {'qwen3': None}\n",
}
"""Stands in for the package, whose import takes seconds."""


def test_no_garbage_is_collected_while_transformers_is_imported(tmp_path: Path) -> None:
    """It would be a fifth of all that a check of a model's folder takes."""
    for name, content in _TRANSFORMERS.items():
        (file := tmp_path / "transformers" / name).parent.mkdir(parents=True, exist_ok=True)
        file.write_text(content)
    (tmp_path / "config.json").write_text('{"model_type": "qwen3"}')
    make(tmp_path / "model.safetensors")
    looks = (
        "import gc, sys; from pathlib import Path; from rljob_runtime.weights.model_files import examine; "
        "print(examine(Path(sys.argv[1]))[1]); print(gc.isenabled())"
    )
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    told = subprocess.run(
        [sys.executable, "-c", looks, str(tmp_path)],
        env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    assert told.stdout.splitlines() == ["False", "[]", "True"]


_SIZES = {"vocab_size": 100, "max_position_embeddings": 64}


@pytest.mark.parametrize(
    ("config", "vocabulary", "longest"),
    [
        ({"model_type": "qwen3", **_SIZES}, 100, 64),
        ({"model_type": "qwen3"}, 151_936, 32_768),
        # Under a name of its family's own.
        ({"model_type": "gpt2", "n_positions": 64}, 50_257, 64),
        ({"model_type": "gemma3", "vision_config": {}, "text_config": _SIZES}, 100, 64),
        ({"model_type": "gemma3", "vision_config": {}, "text_config": {}}, 262_208, 131_072),
        # Its positions are computed, and have no end.
        ({"model_type": "bloom"}, 250_880, None),
        # What cannot be read is told by what loads it.
        ({"model_type": "qwen3", "hidden_size": "wide"}, None, None),
    ],
    ids=str,
)
def test_sizes_that_config_json_leaves_out_are_those_that_transformers_takes(
    tmp_path: Path, config: dict[str, Any], vocabulary: int | None, longest: int | None
) -> None:
    (tmp_path / "config.json").write_text(json.dumps(config))
    make(tmp_path / "model.safetensors")
    found, wrong = examine(tmp_path)
    assert wrong == []
    sizes = found.get("vocab_size"), found.get("max_position_embeddings")
    assert (*sizes, found["model_type"]) == (vocabulary, longest, config["model_type"])


@pytest.mark.parametrize(("kind", "field"), [("deepseek_v3", "kv_lora_rank"), ("mistral", "sliding_window")])
def test_attention_that_is_not_plain_is_told_of_where_config_json_leaves_it_out(
    tmp_path: Path, kind: str, field: str
) -> None:
    """Nobody would take its sizes for those of keys and values."""
    (tmp_path / "config.json").write_text(json.dumps({"model_type": kind}))
    make(tmp_path / "model.safetensors")
    assert examine(tmp_path)[0].get(field)


def test_of_a_model_that_sees_images_too_the_part_for_text_is_told(tmp_path: Path) -> None:
    """What was looked for beside `text_config` was not found, and so not compared with the job."""
    text = {"model_type": "gemma3_text", "max_position_embeddings": 64, "vocab_size": 100, "num_experts": 4}
    whole = {"model_type": "gemma3", "vocab_size": 7, "text_config": text, "vision_config": {"vocab_size": 3}}
    (tmp_path / "config.json").write_text(json.dumps(whole))
    make(tmp_path / "model.safetensors")
    config, _ = examine(tmp_path)
    names = ("max_position_embeddings", "vocab_size", "num_experts", "model_type")
    assert [config[name] for name in names] == [64, 100, 4, "gemma3"]
