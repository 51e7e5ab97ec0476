"""Commands of `rljob` that other packages bring.

Guarantees: such a package is imported only for its own command, or for the list of all; a command whose
package is missing says what to install.

A package names its commands in the entry-point group `rljob.commands`; each entry is a class that is made
without arguments and has what `ManifestCommand` says.
"""

import argparse
from collections.abc import Callable
from functools import partial
from importlib.metadata import entry_points
from pathlib import Path
from typing import Protocol

from rljob_api import RLJob
from rljob_api.errors import Problem

GROUP = "rljob.commands"
_EXTRAS = {"render": "operator"}
"""For each command that is known by name, the extra of the distribution that brings it."""


class ManifestCommand(Protocol):
    """A command that does something with one manifest. `rljob` reads and checks the manifest."""

    help: str
    """One line for `rljob --help`."""

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Add options besides the manifest."""
        ...

    def run(self, job: RLJob, options: argparse.Namespace) -> list[Problem]:
        """Do it; or do nothing and return what is wrong with the job."""
        ...


class CommandMissing(Exception):
    """The command's package is not there; the message is for people."""


def add_commands(
    parsers: "argparse._SubParsersAction[argparse.ArgumentParser]",
    chosen: str | None,
    run: Callable[[ManifestCommand, argparse.Namespace], int],
) -> None:
    """Add a parser for the chosen command or, where `chosen` is no command, for each that is installed. The
    parsed options hold the manifest's path, `file`, and `command`, which calls `run`.

    Raises `CommandMissing` where the chosen one is known and not installed.
    """
    entries = {entry.name: entry for entry in entry_points(group=GROUP)}
    if chosen in parsers.choices:
        return
    if chosen in _EXTRAS and chosen not in entries:
        raise _missing(chosen)
    # All of them for `--help`, and where the word is no command.
    for name in [chosen] if chosen in entries else sorted(entries):
        try:
            command: ManifestCommand = entries[name].load()()
        except ModuleNotFoundError as error:
            # Another module than the command's own package is missing: `command.main` tells what to install.
            if error.name != entries[name].module.partition(".")[0] or name not in _EXTRAS:
                raise
            if name == chosen:
                raise _missing(name) from error
        else:
            parser = parsers.add_parser(name, help=command.help)
            parser.add_argument("file", type=Path, help="the RLJob manifest (-: standard input)")
            command.add_arguments(parser)
            parser.set_defaults(command=partial(run, command))


def _missing(name: str) -> CommandMissing:
    extra = _EXTRAS[name]
    return CommandMissing(
        f"rljob: {name} is a command of the {extra}, which is not installed: from the checkout, "
        f"pip install '.[{extra}]'."
    )
