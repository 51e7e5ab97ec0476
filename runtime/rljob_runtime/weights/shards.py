"""How a model's tensors are shared out to files, in Hugging Face's form.

Guarantees: every tensor is in exactly one file, in the order given; a file holds at most `limit` bytes, or a
single larger tensor. Pure.
"""

import json
from collections.abc import Mapping, Sequence

INDEX = "model.safetensors.index.json"


def plan_shards(sizes: Mapping[str, int], limit: int) -> dict[str, list[str]]:
    """Names of tensors by name of file, from the tensors' sizes in bytes: `model.safetensors`, or
    `model-00001-of-0000N.safetensors` where one file does not hold them."""
    shards: list[list[str]] = []
    filled = 0
    for name, size in sizes.items():
        if not shards or filled + size > limit:
            shards.append([])
            filled = 0
        shards[-1].append(name)
        filled += size
    if len(shards) == 1:
        return {"model.safetensors": shards[0]}
    count = len(shards)
    return {f"model-{n:05d}-of-{count:05d}.safetensors": names for n, names in enumerate(shards, start=1)}


def index_of(shards: Mapping[str, Sequence[str]], total_bytes: int) -> str:
    """The content of `INDEX`, which belongs beside more than one file."""
    places = {name: file for file, names in shards.items() for name in names}
    return json.dumps({"metadata": {"total_size": total_bytes}, "weight_map": places}, indent=2) + "\n"
