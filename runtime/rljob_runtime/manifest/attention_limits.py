"""What the trainer's attention does not compute, by what models call it with."""

UNKNOWN = ("softcap", "s_aux", "position_bias", "indices", "block_indices")
"""Arguments of transformers' attention functions: caps, sinks, biases, and choices of single keys."""
