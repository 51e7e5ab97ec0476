"""The request that a running job stops after the step that is being trained."""

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
