"""Which parameters of a model its architecture trains, of models that the trainer can score.

Guarantees: a model is tried once in a process, however often it is loaded: a reference has the policy's
configuration. What is refused is tried again, and refused again.
"""

import json
from copy import deepcopy
from pathlib import Path
from typing import Any

_KNOWN: dict[str, frozenset[str]] = {}
"""By configuration."""


def trained_names(folder: Path, config: Any) -> frozenset[str]:
    """Names of the parameters that are trained of the model of a folder, whose configuration in transformers
    this is. Raises `UnsupportedModel`."""
    from rljob_runtime.manifest.meta_model import on_meta
    from rljob_runtime.manifest.model_trial import check_trainable

    key = _of_one_model(config)
    if key not in _KNOWN:
        check_trainable(folder, config)
        # transformers forgets which these are when it loads weights.
        parameters = on_meta(deepcopy(config)).named_parameters()
        _KNOWN[key] = frozenset(name for name, each in parameters if each.requires_grad)
    return _KNOWN[key]


def _of_one_model(config: Any) -> str:
    """Equal for configurations of one model, whatever folders they were read from."""
    fields = config.to_dict()
    fields.pop("_name_or_path", None)
    return f"{type(config).__qualname__} {json.dumps(fields, sort_keys=True, default=repr)}"
