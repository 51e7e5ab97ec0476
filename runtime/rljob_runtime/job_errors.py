"""Errors that end a job because a person must change something: each is one line that says what.

Guarantees: importing this loads no torch, so that the driver knows the errors of its workers.
"""


class UnsupportedModel(ValueError):
    """The model cannot be trained or run; the message says why. Running the job again changes nothing."""


class TrainingDiverged(RuntimeError):
    """The gradient is not finite, and the weights were not changed; or what is not trained gives no numbers.
    An older checkpoint may be better."""


class OwnFunctionFailed(RuntimeError):
    """A loss or advantage of the job's own raised, or did not return what it must; the message says which,
    and where."""


class RewardsUnfit(ValueError):
    """The job's advantages are not defined for rewards like these; the message says why."""
