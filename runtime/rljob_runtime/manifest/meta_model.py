"""A Hugging Face model on torch's meta device: its modules and their shapes, and no numbers."""

from typing import Any

import torch
import transformers
from transformers.initialization import no_init_weights


def on_meta(config: Any, **options: Any) -> Any:
    """The causal language model of a configuration in transformers; `options` as of `from_config`. Raises
    what that raises."""
    with torch.device("meta"), no_init_weights():
        return transformers.AutoModelForCausalLM.from_config(config, **options)
