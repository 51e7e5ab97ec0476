"""What the trainer's attention does not compute, by what models call it with."""

UNKNOWN = ("position_bias", "indices", "block_indices")
"""Arguments of transformers' attention functions: biases, and choices of single keys."""
SCORED = ("llama", "qwen2", "gemma2", "gemma3_text", "granite", "olmoe", "gpt_neox")
"""Some of the families, by their model_type, of which the trainer computes all."""
ANOTHER_MODEL = (
    f"give the folder of a model of another family, whose config.json names as its model_type {SCORED[0]}, "
    f"{', '.join(SCORED[1:-1])} or {SCORED[-1]}, for example"
)
"""What to do where nothing about a model can be changed."""


def unequal_heads(heads: int, ranks: int, tensor: int = 1) -> str | None:
    """Why `ranks` that share a sample cannot exchange its tokens for attention heads, of which each has an
    equal part, one of `tensor`; None where they can."""
    own, left = divmod(heads, tensor)
    if not left and own % ranks == 0:
        return None
    split = f", by parallel.tensorParallel {own} on each rank" if tensor > 1 else ""
    return (
        f"parallel.contextParallel.attention: ulysses needs a model whose attention heads ({heads}{split}) "
        f"are divisible by the ranks that share a sample (up to {ranks}): set allGather, or a lower degree"
    )
