"""The request that a running job stops after the step that is being trained, and what it comes to."""

from dataclasses import dataclass

from rljob_runtime.change_signal import ChangeSignal


class StopRequest:
    """Made once for a run; whoever waits for `changes` learns of it and looks at `asked`."""

    def __init__(self, changes: ChangeSignal) -> None:
        self.asked = False
        self._changes = changes

    def ask(self) -> None:
        """Ask for the stop; asking again does nothing more."""
        self.asked = True
        self._changes.notify()


@dataclass(frozen=True)
class Standing:
    """Where a job stands when it is asked to stop."""

    begun: bool
    """Whether its trainer is where the job begins, or goes on; before that there is nothing to save and
    nothing to close."""
    steps: int = 0
    """Steps done."""
    saved: int = 0
    """Steps in the newest checkpoint; 0 where there is none."""
    training: bool = False
    """Whether a step is being trained."""
    trained: bool = False
    """Whether nothing is trained any more, and the model is written."""


def what_a_stop_does(standing: Standing) -> str:
    """What the job does before it ends. Pure."""
    if standing.trained:
        return "ending"
    if standing.training:
        return "stopping after this step, with a checkpoint"
    if standing.steps != standing.saved:
        return "stopping, with a checkpoint"
    if standing.steps:
        return f"stopping; the checkpoint of step {standing.saved} has all that is trained"
    return "stopping before the first step: nothing is trained yet"
