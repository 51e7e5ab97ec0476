"""`training.adapter` from a launch's LoRA; the accelerator must be known."""

from rljob_runtime.authoring.verl.given import Given
from rljob_runtime.authoring.verl.values import items

_RANK, _ALPHA, _TARGETS = (
    f"actor_rollout_ref.model.{key}" for key in ("lora_rank", "lora_alpha", "target_modules")
)
_FIELD = "training.adapter"
_ALL = "all-linear"
_ALPHA_THERE = 16


def adapter(given: Given) -> None:
    """Rank, alpha and layers; nothing where verl trains all weights, as it does with a rank of 0."""
    rank = given.integer(_RANK)
    if rank is None or rank < 1:
        return
    if given.fields["spec.accelerator"].value == "ascend":
        given.tell(_RANK, "left out, so that all weights are trained: there is no LoRA on NPUs")
        return
    if not given.take(_RANK, f"{_FIELD}.rank", rank):
        return
    dtype = given.fields["spec.training.model.dtype"]
    if given.fields["spec.accelerator"].value == "nvidia" and dtype.value == "float32":
        given.put("training.model.dtype", "bfloat16", f"in place of float32: {_RANK}")
        given.tell(_RANK, "model.dtype is bfloat16, as vLLM multiplies adapters in 16 bits on GPUs")
    alpha = given.integer(_ALPHA)
    if alpha is None or not given.take(_ALPHA, f"{_FIELD}.alpha", alpha):
        given.put(f"{_FIELD}.alpha", _ALPHA_THERE, f"verl's default of {_ALPHA}")
    targets = given.text(_TARGETS)
    if targets is None or targets == _ALL:
        # The default of both: every linear layer but the output head.
        given.accounted.add(_TARGETS)
    else:
        given.take(_TARGETS, f"{_FIELD}.targetModules", [str(item) for item in items(targets)])
