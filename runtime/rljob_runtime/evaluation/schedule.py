"""When the policy is evaluated. Pure."""

from dataclasses import dataclass


@dataclass(frozen=True)
class EvaluationSchedule:
    """With the initial weights, with every so many-th weight version, and with the last weights."""

    every_versions: int
    steps_per_version: int

    def due(self, step: int, last: bool) -> bool:
        """Whether the weights after `step` steps are evaluated; `last`: no step follows."""
        return last or step % (self.every_versions * self.steps_per_version) == 0
