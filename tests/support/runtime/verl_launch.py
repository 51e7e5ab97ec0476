"""Launches of verl as converted manifests, for tests."""

from rljob_api import RLJob
from rljob_runtime.authoring.verl.convert import Conversion, convert
from rljob_runtime.authoring.verl.launch import read_launch
from rljob_runtime.manifest.source import parse

ACTOR = "actor_rollout_ref.actor"
ROLLOUT = "actor_rollout_ref.rollout"
DISTILLED = "distillation.distillation_loss"
TEACHER = ["distillation.enabled=True", "distillation.teacher_models.a.model_path=/m/teacher"]
RECIPE = "recipe.fully_async_policy.fully_async_main"


def converted(*overrides: str, program: str = "verl.trainer.main_ppo") -> Conversion:
    words = " ".join(f"'{override}'" for override in overrides)
    return convert(read_launch(f"python3 -m {program} {words}\n", {}), "train.sh")


def fields(conversion: Conversion) -> dict[str, object]:
    """The manifest's values, below spec where they are there."""
    RLJob.model_validate(parse(conversion.text).value)
    return {path.removeprefix("spec."): field.value for path, field in conversion.fields.items()}


def told(conversion: Conversion) -> dict[str, str]:
    return {remark.subject: remark.words for remark in conversion.remarks}


def of(conversion: Conversion, key: str) -> list[tuple[str, bool]]:
    """What is told about a key: the words, and whether the job differs in it."""
    return [
        (remark.words, remark.decide)
        for remark in conversion.remarks
        if remark.subject.partition("=")[0] == key
    ]
