"""Small files that a manifest may refer to."""

import json
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

LONGROPE = {
    "rope_type": "longrope", "rope_theta": 10_000.0, "factor": 8.0,
    "original_max_position_embeddings": 8, "short_factor": [1.0], "long_factor": [4.0],
}  # fmt: skip


def make(path: Path) -> Path:
    """A small file of the kind that its name, and perhaps its folder's, says; its path."""
    path.parent.mkdir(exist_ok=True, parents=True)
    header = json.dumps(
        {
            "__metadata__": {"format": "pt"},
            "a": {"dtype": "F32", "shape": [3, 4], "data_offsets": [0, 48]},
            "b": {"dtype": "F32", "shape": [5], "data_offsets": [48, 68]},
        }
    ).encode()
    contents = {
        "config.json": config("qwen3"),
        "new/config.json": config("qwen33"),
        "translator/config.json": config("t5"),
        "capped/config.json": config("qwen3", attn_logit_softcapping=50.0),
        "fused/config.json": config("phi3", pad_token_id=0),
        "turning/config.json": config("llama", rope_parameters=LONGROPE),
        "quantized/config.json": config("qwen3", quantization_config={"quant_method": "fp8"}),
        "model.safetensors": struct.pack("<Q", len(header)) + header + bytes(68),
        "broken/model.safetensors": struct.pack("<Q", 1000) + b"{",
        "mine.py": b"def score(sample):\n    return 1.0\n",
        "empty.jsonl": b"",
        "good.jsonl": b'{"prompt": "ab", "answer": "ab"}\n',
        "unanswered/good.jsonl": b'{"prompt": "ab"}\n',
        "bad.jsonl": b'{"prompt": "ab", "answer": "ab"}\n{"prompt": \n',
    }
    if path.name == "model.safetensors" and path.parent.name in ("m", "fused"):
        of = contents["fused/config.json" if path.parent.name == "fused" else "config.json"]
        return write_weights(path, json.loads(of))
    path.write_bytes(contents.get(f"{path.parent.name}/{path.name}", contents.get(path.name, b"")))
    return path


def write_weights(path: Path, config: Mapping[str, Any]) -> Path:
    """Write weights of the model that has this config.json, drawn anew; returns `path`."""
    import transformers
    from safetensors.torch import save_model

    sizes = {name: value for name, value in config.items() if name != "model_type"}
    shaped = transformers.AutoConfig.for_model(config["model_type"], **sizes)
    save_model(transformers.AutoModelForCausalLM.from_config(shaped), str(path), {"format": "pt"})
    return path


def config(model_type: str, **more: object) -> bytes:
    sizes = {
        "vocab_size": 64,
        "max_position_embeddings": 64,
        "num_attention_heads": 4,
        "num_hidden_layers": 2,
        "hidden_size": 16,
        "intermediate_size": 16,
        "head_dim": 32,
    }
    return json.dumps({"model_type": model_type, "num_key_value_heads": 2, **sizes, **more}).encode()
