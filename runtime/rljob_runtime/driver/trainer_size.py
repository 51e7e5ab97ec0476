"""How many workers the trainer is to run on, while the RLJob, its operator and the pods say different things.

Guarantees: another size than the ranks run on is answered only once the operator makes the pool have it, or
it has it: training goes on while the operator refuses the spec, may not change the pool, or is away. What the
operator has taken up holds until it takes up another. Pure.
"""

from rljob_runtime.site.desired import DesiredState


def trainer_size(desired: DesiredState, so_far: int, placed: int, there: int) -> int:
    """Workers to run on.

    `so_far`: the last answer; `placed`: workers that ranks were last placed on, 0 before the first time;
    `there`: workers whose pods are there now.
    """
    taken_up = desired.trainer_resize
    # It would wait for pods that nobody may ask for.
    if desired.resize_refused and placed == there != 0:
        return placed
    # An operator that has seen the spec and takes up another size than it asks for refuses to make it larger.
    if taken_up is not None and (taken_up == desired.trainer or desired.settled):
        return taken_up
    # Nothing runs that could go on.
    if placed == 0:
        return desired.trainer
    if taken_up is not None or not desired.settled:
        return so_far
    # No resize is under way: the pool has the size that is asked for, unless that is refused.
    if not desired.refused:
        return desired.trainer
    # A resize is done, or was withdrawn before the pool was touched.
    return so_far if there == so_far else placed
