"""How work is split: over micro-batches and over ranks."""
