"""What a job has switched on that the simulator does not model, although it changes how long steps take.

What every job has and the simulator leaves out as well (the time of rewards, of the queue, of checkpoints) is
told by docs/operations.md alone. Pure.
"""

from collections.abc import Sequence
from typing import NamedTuple

from rljob_api.base import value_at
from rljob_api.job import Spec


class LeftOut(NamedTuple):
    """Something that is not simulated."""

    what: str
    """In words."""
    field: str
    """The path, below `spec`, of the field that asks for it."""


_FIELDS: tuple[LeftOut, ...] = (
    LeftOut("over-sampling", "training.rollout.overSampling"),
    LeftOut("refilling for groups of equal rewards", "training.rollout.filter.zeroVariance"),
    LeftOut("refilling for groups by pass rate", "training.rollout.filter.passRate"),
    LeftOut("speculation", "training.rollout.engine.vllm.speculation"),
    LeftOut("evaluations", "training.evaluation"),
    LeftOut("the scoring by a teacher's server", "training.algorithm.distillation.teacher.server"),
    LeftOut("engines that load weights each in its turn", "training.async.weightSync.pull"),
)
"""Fields that are not set unless the job wants it."""
_FINISHED_FIRST = LeftOut(
    "engines that finish responses before they load weights", "training.async.weightSync.push.inFlight"
)
_FORCED = LeftOut("the lengths of the job's own file, which --trace takes", "training.rollout.forcedLengths")


def left_out(spec: Spec, recorded: bool) -> list[LeftOut]:
    """All of it, in a fixed order. `recorded`: the lengths that are simulated are recorded ones."""
    found = [each for each in _FIELDS if value_at(spec, each.field) is not None]
    push = spec.training.async_.weight_sync.push
    if push is not None and push.in_flight == "wait":
        found.append(_FINISHED_FIRST)
    if spec.training.rollout.forced_lengths is not None and not recorded:
        found.append(_FORCED)
    return found


def sentence(found: Sequence[LeftOut]) -> str:
    """The same as a line for people; "" where nothing is left out."""
    if not found:
        return ""
    return f"Not simulated: {', '.join(f'{what} ({field})' for what, field in found)}."
