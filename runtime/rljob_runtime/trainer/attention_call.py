"""What a model's attention layer asks for."""

from typing import NamedTuple

from torch import Tensor, nn


class AttentionCall(NamedTuple):
    """Causal attention of each token within its sample."""

    module: nn.Module
    """The model's attention layer."""
    query: Tensor
    """Shape (1, heads, tokens, head size)."""
    key: Tensor
    """Shape (1, shared heads, tokens, head size): fewer heads, where queries share them."""
    value: Tensor
    """As `key`."""
    scaling: float | None
    """Products of queries and keys are multiplied by it; None is 1/sqrt(head size)."""
    window: int | None
    """With a window a token sees itself and the `window - 1` tokens before it; None is all before it."""
    cap: float | None = None
    """A score s, with `scaling`, becomes cap * tanh(s / cap)."""
    sinks: Tensor | None = None
    """Of each head a score beside those of the keys, whose value is 0; shape (heads,)."""
