"""Which models vLLM generates with, but does not take new weights of: told before a job."""

from pathlib import Path
from typing import Any

from rljob_runtime.job_errors import UnsupportedModel

_COPIED = ("gpt_oss",)
"""Of these vLLM's own code copies experts and sinks into the model without the loaders that its reload puts
into their place (0.32): a reload leaves them as they were, and says so in its log alone."""


def check_updates(folder: Path, config: Any) -> None:
    """Raise `UnsupportedModel` where an engine would go on with weights of before an update, of a model that
    is trained without an adapter. `config`: the model's in transformers."""
    if config.model_type in _COPIED:
        raise UnsupportedModel(
            f"{folder}: vLLM does not take new weights of a model of the model_type {config.model_type}: its "
            "experts and sinks would stay what they were: set training.adapter, which vLLM loads beside the "
            "model, or give another model"
        )
