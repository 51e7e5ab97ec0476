"""Tiny random models of many architectures, whose every weight is felt in what they compute."""

from pathlib import Path
from typing import Any

import torch
import transformers

_SHAPE: dict[str, Any] = {
    "vocab_size": 64, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "head_dim": 16,
    "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 512, "sliding_window": 9,
    "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "ffn_dim": 96, "word_embed_proj_dim": 64,
    "num_experts": 4, "num_local_experts": 4, "n_routed_experts": 4, "num_experts_per_tok": 2,
    "moe_intermediate_size": 48, "shared_expert_intermediate_size": 48, "n_group": 1, "topk_group": 1,
    "first_k_dense_replace": 1, "kv_lora_rank": 16, "q_lora_rank": 24, "qk_rope_head_dim": 16,
    "qk_nope_head_dim": 16, "v_head_dim": 16, "lru_width": 64, "attention_window_size": 8,
}  # fmt: skip
"""Sizes, by their names in configurations: an architecture gets those that it has."""


IMAGES: dict[str, Any] = {
    "vision_config": {
        "hidden_size": 32,
        "intermediate_size": 32,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "image_size": 28,
        "patch_size": 14,
    },
    "mm_tokens_per_image": 4,
}
"""Sizes of what gemma3 has for images."""  # fmt: skip


def family_model(folder: Path, kind: str, seed: int = 0, **fields: Any) -> Path:
    """A model of transformers' `model_type` `kind`, with these `fields` of its configuration; returns
    `folder`. Its weights are so large that attention is sharp and tokens differ: with those that transformers
    draws, a layer that is left out would hardly be noticed."""
    plain = transformers.AutoConfig.for_model(kind)
    text = plain.get_text_config()
    known = text.to_dict().keys() | type(text).attribute_map.keys()
    shape = {name: value for name, value in _SHAPE.items() if name in known}
    # Of a model that reads images too the part for text has its own configuration.
    sizes = shape if text is plain else {"text_config": shape | fields.pop("text_config", {})}
    config = transformers.AutoConfig.for_model(kind, **sizes | fields)
    # What comes of tied embeddings are logits: with larger ones all of them would be 0 or 1.
    words = 0.25 if config.get_text_config().tie_word_embeddings else 1.0
    torch.manual_seed(seed)
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if weight.ndim == 1:
                weight.add_(0.2 * torch.randn_like(weight))
            else:
                weight.normal_(0, words if "embed" in name else 1.3 / weight.shape[-1] ** 0.5)
    model.save_pretrained(folder)
    return folder
