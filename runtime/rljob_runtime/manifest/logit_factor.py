"""The factor between what a model's output head gives and its logits. Pure."""

import math
from typing import Any


def logit_factor(config: Any) -> float:
    """By a configuration in transformers, that of the part for text: Cohere's models multiply by
    `logit_scale`, Granite's divide by `logits_scaling`; 1 for the others."""
    scale, divisor = getattr(config, "logit_scale", None), getattr(config, "logits_scaling", None)
    if divisor == 0:
        return math.inf
    return (1.0 if scale is None else float(scale)) / (1.0 if divisor is None else float(divisor))
