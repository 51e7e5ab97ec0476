"""Commands of `rljob` that other packages bring.

Guarantees: such a package is imported only for its own command, for the list of all, or for what it finds
wrong with a job; where the package of a known command is missing, what to install is said.

A package names its commands in the entry-point group `rljob.commands`; each entry is a class that is made
without arguments and has what `ManifestCommand` says.
"""

import argparse
from collections.abc import Callable
from functools import partial
from importlib.metadata import EntryPoint, entry_points
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

    def problems(self, job: RLJob) -> list[Problem]:
        """What is wrong with parts of a job that this package alone reads, whatever the options."""
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
            command = _load(entries[name])
        except CommandMissing:
            if name == chosen:
                raise
        else:
            parser = parsers.add_parser(name, help=command.help)
            parser.add_argument("file", type=Path, help="the RLJob manifest (-: standard input)")
            command.add_arguments(parser)
            parser.set_defaults(command=partial(run, command))


def check_parts(job: RLJob) -> tuple[list[Problem], list[str]]:
    """What is wrong with the parts of a job that commands of other packages read; and known commands whose
    package is not there, so that nobody has looked."""
    entries = {entry.name: entry for entry in entry_points(group=GROUP)}
    found, missing = [], sorted(_EXTRAS.keys() - entries)
    for name in sorted(entries):
        try:
            found += _load(entries[name]).problems(job)
        except CommandMissing:
            missing.append(name)
    return found, missing


def to_install(name: str) -> str:
    """How to install the package of a known command, as the end of a sentence."""
    extra = _EXTRAS[name]
    return f"the {extra}, which is not installed: from the checkout, pip install '.[{extra}]'"


def _load(entry: EntryPoint) -> ManifestCommand:
    """Raises `CommandMissing` where a known command's own package is not there."""
    try:
        command: ManifestCommand = entry.load()()
    except ModuleNotFoundError as error:
        # Another module than the command's own package is missing: `command.main` tells what to install.
        if error.name != entry.module.partition(".")[0] or entry.name not in _EXTRAS:
            raise
        raise _missing(entry.name) from error
    return command


def _missing(name: str) -> CommandMissing:
    return CommandMissing(f"rljob: {name} is a command of {to_install(name)}.")
