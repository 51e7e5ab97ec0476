"""Rotary embeddings that depend on how long the samples of a forward pass are."""

from collections.abc import Iterator
from typing import Any

from rljob_runtime.job_errors import UnsupportedModel


def check_rotations(config: Any, longest: int) -> None:
    """Raise `UnsupportedModel` where a model with this Hugging Face configuration, that of its text part,
    computes for a sample of up to `longest` tokens something else beside other samples than alone.

    With `rope_type` dynamic or longrope all samples of a pass are rotated as its longest one asks for, once
    that has more tokens than the model was first trained with; packed samples, and ranks that share one, see
    different longest ones."""
    for parameters in _rotations(config):
        kind = parameters.get("rope_type")
        if kind == "longrope":
            limit = parameters.get("original_max_position_embeddings") or config.max_position_embeddings
        elif kind == "dynamic":
            limit = config.max_position_embeddings
        else:
            continue
        if longest > limit:
            raise UnsupportedModel(
                f"a model with rope_type {kind} in config.json rotates all samples of a forward pass by the "
                f"longest of them, once that has more than {limit} tokens: what is computed for a sample "
                f"would depend on others. This job's samples have up to {longest} tokens: lower "
                f"data.maxPromptTokens and rollout.maxResponseTokens to {limit} together"
            )


def _rotations(config: Any) -> Iterator[dict[str, Any]]:
    """The parameters of a model's rotary embeddings: one set for all layers, or one for each type."""
    given = getattr(config, "rope_parameters", None) or {}
    yield given
    yield from (value for value in given.values() if isinstance(value, dict))
