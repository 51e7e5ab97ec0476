"""A launch of verl becomes a manifest, and a list of what does not.

Guarantees: the manifest's fields are valid; every override becomes a field, or is told.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from rljob_api.errors import Problem, dotted
from rljob_runtime.authoring.fields import Fields, broken
from rljob_runtime.authoring.verl import adapter, distillation, learning, loss, running, validation
from rljob_runtime.authoring.verl.counterparts import TABLE
from rljob_runtime.authoring.verl.given import Given
from rljob_runtime.authoring.verl.launch import Launch, Override, Remark
from rljob_runtime.authoring.verl.programs import program_of
from rljob_runtime.authoring.verl.values import Unfit, of_kind
from rljob_runtime.authoring.write import manifest

_BUILDERS = (
    running.name,
    running.pools,
    running.model,
    adapter.adapter,
    learning.data,
    learning.reward,
    running.rollout,
    learning.algorithm,
    distillation.distillation,
    loss.policy_loss,
    running.schedule,
    running.asynchrony,
    running.parallel,
    learning.optimizer,
    running.checkpoint,
    validation.evaluation,
    running.loggers,
)
"""In the order in which each needs the fields of those before it."""
_REQUIRED = (
    "spec.training.model.path",
    "spec.training.reward.function",
    "spec.training.data",
    "spec.training.schedule",
)

_NOTHING = "nothing to set: so by default, or without effect beside the script's other settings"


@dataclass(frozen=True)
class Conversion:
    """What became of a launch."""

    text: str
    """The manifest."""
    fields: Fields
    remarks: tuple[Remark, ...]
    """What did not become a field, in the order of the script's lines."""
    keys: int
    """Keys that the launch gives."""
    converted: int
    """How many of them became fields, with nothing to tell of them."""


class Inconvertible(ValueError):
    """The overrides make no valid manifest; the message names the fields."""


def convert(launch: Launch, script: str) -> Conversion:
    """The manifest of a launch; raises `Inconvertible`. `script`: its name, for a comment."""
    given = Given(launch)
    if program_of(launch.program) is None:
        words = f"not known here, and read as {given.program.name}: what else it does is not taken over"
        given.tell(launch.program, words)
    for key, override in given.overrides.items():
        _direct(given, key, override)
    for build in _BUILDERS:
        build(given)
    for key, override in given.overrides.items():
        if key not in given.accounted:
            _without(given, key, override)
    _settle(given)
    head = [
        f"Made by `rljob from-verl {script}` from line {launch.line} of that script. Comments name the key "
        "of verl that a value comes from.",
        "Relative paths are relative to this file's folder, and in a cluster to where spec.storage is "
        "mounted. `rljob validate` checks all of it.",
    ]
    remarks = sorted(given.told, key=lambda remark: remark.line)
    keys = len(given.overrides)
    return Conversion(
        manifest(given.fields, head), given.fields, tuple(remarks), keys, keys - len(given.told_of)
    )


def _direct(given: Given, key: str, override: Override) -> None:
    """Set the field that takes the key's value as it is, where there is one."""
    row = TABLE.row(key)
    if row is None or row.field is None or override.removed:
        return
    try:
        if override.unknown is not None:
            raise Unfit(override.unknown)
        value = of_kind(override.value, row.kind)
    except Unfit as why:
        given.tell(key, f"{row.field}: {why}; left at its default")
        return
    if value is not None:
        given.take(key, row.field, value)


def _without(given: Given, key: str, override: Override) -> None:
    """Tell of an override that no field was made of."""
    row = TABLE.row(key)
    if override.removed:
        given.tell(key, "taken out of verl's configuration by ~: nothing to take out here", False)
    elif row is None:
        given.tell(key, "not known here: nothing is made of it")
    elif override.unknown is not None and not row.lost:
        given.tell(key, f"left out: {override.unknown}")
    elif row.lost:
        given.tell(key, row.plain_text, decide=row.differs(override.value))
    else:
        given.tell(key, _NOTHING, False)


def _settle(given: Given) -> None:
    """Leave out fields until those that remain are valid together."""
    while wrong := broken(given.fields):
        out = [path for path in given.fields if not path.startswith(_REQUIRED) and _about(wrong, path)]
        if not out:
            raise Inconvertible("; ".join(map(str, wrong)))
        for path in out:
            del given.fields[path]
        for problem in wrong:
            given.told.append(Remark(given.launch.line, dotted(problem.path), f"left out: {problem.message}"))


def _about(problems: Iterable[Problem], path: str) -> bool:
    places = [dotted(problem.path) for problem in problems]
    return any(path == place or path.startswith(f"{place}.") for place in places)
