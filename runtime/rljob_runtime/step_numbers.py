"""How people are told of steps: the first is step 1.

So a step's number is how many steps are done when it has ended, as the terminal counts them (`step 1/12`),
the RLJob's status, the folders of checkpoints, evaluations, and the curves of TensorBoard and other loggers,
which show both. What programs read counts from 0: the field `step` of metrics, events, samples and spans.
"""


def step_number(step: int) -> int:
    """What people call a step, of which `step`, 0 or more, is the count from 0."""
    return step + 1


def step_index(number: int) -> int:
    """The count from 0 of the step that people call so."""
    return number - 1
