"""What the trainer's attention does not compute, by what models call it with."""

UNKNOWN = ("softcap", "s_aux", "position_bias", "indices", "block_indices")
"""Arguments of transformers' attention functions: caps, sinks, biases, and choices of single keys."""


def unequal_heads(heads: int, ranks: int) -> str | None:
    """Why `ranks` that share a sample cannot exchange its tokens for attention heads; None where they can."""
    if heads % ranks == 0:
        return None
    return (
        f"parallel.contextParallel.attention: ulysses needs a model whose attention heads ({heads}) are "
        f"divisible by the ranks that share a sample (up to {ranks}): set allGather, or a lower degree"
    )
