"""Which models the engine on PyTorch does not run: told before a job, and by the engine itself.

Both look at the model that transformers loaded from a folder, with or without its numbers.
"""

from pathlib import Path
from typing import Any

from rljob_runtime.job_errors import UnsupportedModel
from rljob_runtime.weights.attention_kind import caps_or_sinks
from rljob_runtime.weights.contents import Shapes


def check_reloading(folder: Path, model: Any, in_folder: Shapes) -> None:
    """Raise `UnsupportedModel` where a tensor of the folder has no place of its name in the model: the engine
    copies new weights to where their names say. `in_folder`: the tensors there."""
    if unknown := in_folder.keys() - model.state_dict().keys():
        raise UnsupportedModel(
            f"{folder}: the torch engine cannot reload this architecture ({min(unknown)}); "
            "use the vllm engine"
        )


def check_attention(folder: Path, model: Any, length: int) -> None:
    """Raise `UnsupportedModel` where layers of the model have attention that the engine does not compute:
    caps of scores, sinks, or a window that sequences of `length` tokens pass."""
    if (what := caps_or_sinks(model)) is not None:
        raise UnsupportedModel(
            f"{folder}: the torch engine has no attention with {what}; use the vllm engine"
        )
    _check_window(folder, model.config, length)


def _check_window(folder: Path, config: Any, length: int) -> None:
    """Raise `UnsupportedModel` where layers of the model with this configuration see less than `length`
    tokens: the engine lets each token see all before it."""
    # A window that no sequence reaches changes nothing, and a config may name one that no layer uses.
    window = getattr(config, "sliding_window", None)
    if window and length > window and "sliding_attention" in (getattr(config, "layer_types", None) or ()):
        raise UnsupportedModel(
            f"{folder}: the torch engine has no sliding-window attention; sequences of up to {window} tokens "
            "work, or use the vllm engine"
        )
