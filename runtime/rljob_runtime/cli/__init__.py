"""The `rljob` command."""

from collections.abc import Sequence

from rljob_runtime.cli.early_interrupt import ended_by_interrupt


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; the exit code. argparse itself exits with 2 for wrong arguments."""
    # Imported here, for it takes most of the time of a short command.
    with ended_by_interrupt():
        from rljob_runtime.cli.command import main as run_command

    return run_command(arguments)


__all__ = ["main"]
