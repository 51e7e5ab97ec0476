"""A teacher from a launch of verl: on-policy distillation, beside its rewards or in place of them."""

import re

from rljob_runtime.authoring.verl.given import Given

_LOSS = "distillation.distillation_loss"
_PATH = re.compile(r"distillation\.teacher_models?\.(\w+\.)?model_path")
_FIELD = "training.algorithm"


def distillation(given: Given) -> None:
    """The teacher; the advantages must be there."""
    if not given.flag("distillation.enabled"):
        return
    given.accounted.add("distillation.enabled")
    paths = [key for key in given.overrides if _PATH.fullmatch(key)]
    path = given.text(paths[0]) if paths else None
    if path is None:
        given.tell("distillation.enabled", f"set spec.{_FIELD}.distillation.teacher.path")
        return
    if not given.take(paths[0], f"{_FIELD}.distillation.teacher.path", path):
        return
    for other in paths[1:]:
        given.tell(other, f"one teacher alone is learned from, that of {paths[0]}")
    if given.flag(f"{_LOSS}.use_task_rewards") is False:
        given.fields = {
            name: field
            for name, field in given.fields.items()
            if not name.startswith((f"spec.{_FIELD}.advantage", f"spec.{_FIELD}.normalizeByStd"))
        }
        given.put(f"{_FIELD}.advantage.none", {}, given.origin(f"{_LOSS}.use_task_rewards"))
    elif (coefficient := given.number(f"{_LOSS}.distillation_loss_coef")) is not None:
        given.take(f"{_LOSS}.distillation_loss_coef", f"{_FIELD}.distillation.coefficient", coefficient)
