"""How a person follows a job: a live view on a terminal, log lines elsewhere."""

from typing import Protocol, TextIO

from rljob_runtime.view.progress import Header, Progress, Summary

__all__ = ["Header", "Progress", "Summary", "View", "make_view"]


class View(Protocol):
    """Shows one job, from start to finish."""

    def start(self, progress: Progress) -> None:
        """Show the header; call it once, first."""
        ...

    def update(self, progress: Progress) -> None:
        """Show where the job stands; cheap enough for every step of a fast job."""
        ...

    def message(self, text: str) -> None:
        """Show a warning or a fault, one line, kept visible."""
        ...

    def finish(self, summary: Summary) -> None:
        """Show how it ended; call it once, last."""
        ...


def make_view(stdout: TextIO, live: bool) -> View:
    """The live view where `stdout` is a terminal that can be redrawn and `live` is wanted, else log lines."""
    if live and stdout.isatty():
        from rich.console import Console

        from rljob_runtime.view.live import LiveView

        console = Console(file=stdout)
        # On a terminal without cursor control (TERM=dumb) each frame would be a new block.
        if not console.is_dumb_terminal:
            return LiveView(console)
    from rljob_runtime.view.plain import PlainView

    return PlainView(stdout)
