"""How much of it `weight_staging` does, and the model that it does it with."""

import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
import transformers
from safetensors.torch import load_file, save_file

from tests.bench.peers.work import LARGE, SMALL, Work
from tests.bench.weight_staging_rows import Kind
from tests.support.runtime.tiny_models import published


@dataclass(frozen=True)
class Scale:
    """How much of it there is."""

    work: Work
    dtype: str
    in_flight: Sequence[int]
    updates: int
    """Of each kind, at each number of requests."""
    response: int
    kinds: Sequence[Kind] = ("staged", "loaded")
    """Of updates: each beside the next."""
    keep_kv: bool = False


FULL = Scale(LARGE, "bfloat16", (64, 512), 4, 192)
TINY = Scale(SMALL, "float32", (4, 8), 3, 64)


def make_model(scale: Scale, folder: Path) -> list[Path]:
    """The model, and a second version of it."""
    config = transformers.AutoConfig.for_model(
        "qwen3", vocab_size=scale.work.vocabulary, tie_word_embeddings=True, max_position_embeddings=2048,
        **scale.work.shape,
    )  # fmt: skip
    torch.manual_seed(0)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    with torch.device(device):
        model = transformers.AutoModelForCausalLM.from_config(config, dtype=getattr(torch, scale.dtype))
    folders = [published(folder / "model"), published(folder / "other")]
    model.save_pretrained(folders[0])
    weights = load_file(folders[0] / "model.safetensors", device=device)
    moved = {name: value + 0.005 * torch.randn_like(value) for name, value in weights.items()}
    save_file({name: value.cpu() for name, value in moved.items()}, folders[1] / "model.safetensors")
    shutil.copy(folders[0] / "config.json", folders[1])
    del model, weights, moved
    if device == "cuda":
        torch.cuda.empty_cache()
    return folders
