"""What a model's attention has beside queries, keys and values, by its configuration and the names of its
weights. Pure."""

from typing import Any

CAP = "attn_logit_softcapping"
"""The field of config.json with the cap of a score s of attention, which becomes cap * tanh(s / cap)."""
SINKS = ".sinks"
"""How the names of weights end that take part in attention's softmax beside the keys: one for each head."""


def cap_of(model: Any) -> float | None:
    """The cap of a Hugging Face model's scores; None where it has none."""
    cap: float | None = getattr(model.config.get_text_config(), CAP, None)
    return cap


def sinks_of(model: Any) -> str | None:
    """The name of the first sinks in a Hugging Face model's layers; None where they have none."""
    return next((name for name, _ in model.named_parameters() if name.endswith(SINKS)), None)


def caps_or_sinks(model: Any) -> str | None:
    """What of both the layers of a Hugging Face model have, in words; None where they have neither."""
    cap = cap_of(model)
    if cap is not None:
        return f"a cap of its scores ({CAP} {cap} in config.json)"
    sinks = sinks_of(model)
    return None if sinks is None else f"sinks ({sinks})"
