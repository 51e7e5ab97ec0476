"""The `rljob` command."""

from rljob_runtime.cli.command import main

__all__ = ["main"]
