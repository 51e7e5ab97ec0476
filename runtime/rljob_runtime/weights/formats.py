"""The number format of each tensor of a version, as it is sent and stored: trainer and engines, each by
itself, come to the same. Pure.

All have that of the job but what a router of experts adds to its scores when it chooses (arXiv:2408.15664):
two experts may differ by less than the last digit of a narrow format. vLLM keeps these corrections in float32
whatever the model's format is, and so does the trainer (`trainer.router_corrections`).
"""

_CORRECTIONS = frozenset({"e_score_correction_bias", "expert_bias", "router_bias"})
"""Their names in folders, after the last dot."""
_WIDE = "float32"


def is_correction(name: str) -> bool:
    """Whether the tensor of this name, in a folder or a model, is a router's correction."""
    return name.rpartition(".")[2] in _CORRECTIONS


def format_of(name: str, job: str) -> str:
    """The number format, by torch's name, of the tensor of this name in a job of the format `job`."""
    narrow = job in ("bfloat16", "float16")
    return _WIDE if narrow and is_correction(name) else job
