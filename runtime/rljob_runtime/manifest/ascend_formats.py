"""Does vLLM on Ascend NPUs compute in the number format of the model? Pure."""

from rljob_api import RLJob
from rljob_api.errors import Problem


def check_format(job: RLJob) -> Problem | None:
    """What is wrong with `training.model.dtype`; None where the engine takes it."""
    training = job.spec.training
    if job.spec.accelerator != "ascend" or training.rollout.engine.vllm is None:
        return None
    if training.model.dtype == "bfloat16":
        return None
    given = "" if "dtype" in training.model.model_fields_set else ", its default"
    return Problem(
        ("spec", "training", "model", "dtype"),
        f"is {training.model.dtype}{given}, and vLLM's attention on Ascend computes in 16 bits alone: set "
        "bfloat16. The trainer keeps float32 master weights with it too",
    )
