"""The factor between what a model's output head gives and its logits, and the cap of these. Pure."""

import math
from typing import Any

LOGIT_CAP = "final_logit_softcapping"
"""The field of config.json that says it."""


def logit_factor(config: Any) -> float:
    """By a configuration in transformers, that of the part for text: Cohere's models multiply by
    `logit_scale`, Granite's divide by `logits_scaling`, with which HyperCLOVA X multiplies; 1 for others."""
    scale, divisor = getattr(config, "logit_scale", None), getattr(config, "logits_scaling", None)
    if getattr(config, "model_type", None) == "hyperclovax":
        scale, divisor = divisor, None
    if divisor == 0:
        return math.inf
    return (1.0 if scale is None else float(scale)) / (1.0 if divisor is None else float(divisor))


def logit_cap(config: Any) -> float | None:
    """By the same: what Gemma's output head gives, z, becomes cap * tanh(z / cap); None where it does not."""
    cap = getattr(config, LOGIT_CAP, None)
    return None if cap is None else float(cap)
