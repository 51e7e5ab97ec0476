"""The commands of `rljob` that write a manifest.

Guarantees: a file that is there is left as it is, unless the user says otherwise; a script is never run.
"""

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from rljob_runtime.cli.endings import fail, refuse
from rljob_runtime.exit_codes import ExitCode
from rljob_runtime.given_files import called, no_place, no_text, read_text_file

if TYPE_CHECKING:
    from rljob_runtime.authoring.answers import Answers


def new(options: argparse.Namespace) -> int:
    """Write the manifest of a new job."""
    from rljob_runtime.authoring.answers import (
        QUESTIONS,
        Answers,
        Unanswerable,
        answer,
        check,
        needed_flags,
        with_defaults,
    )
    from rljob_runtime.authoring.new_job import new_job
    from rljob_runtime.cli.named_inputs import look_at

    base = options.output.parent if options.output is not None else Path()
    # What would fail in the end fails before anything is asked.
    if options.output is not None and (why := _in_the_way(options.output, options.force)) is not None:
        return refuse(why)
    answers = Answers()
    try:
        for question in QUESTIONS:
            given = getattr(options, question.field)
            if given is not None:
                answers = answer(answers, question, given)
        check(answers)
        if sys.stdin is not None and sys.stdin.isatty():
            told = _asked(answers, base)
            if told is None:
                return refuse("\nrljob: no more input; nothing was written.")
            answers = told
        elif needed := needed_flags(answers):
            return refuse(f"rljob: without a terminal nothing can be asked: give {needed}.")
        answers = with_defaults(answers)
        check(answers)
    except Unanswerable as error:
        return refuse(f"rljob: {error}.")
    named = look_at(answers, base)
    for warning in named.warnings:
        print(f"rljob: warning: {warning}.", file=sys.stderr)
    text, _ = new_job(answers, named.positions, named.prompts)
    return _put(text, options.output, options.force, in_cluster=answers.where == "cluster")


def _asked(answers: "Answers", base: Path) -> "Answers | None":
    """All that a person at the terminal says; None where the input ends before."""
    from rljob_runtime.authoring.answers import unnamed_fields
    from rljob_runtime.authoring.ask import ask
    from rljob_runtime.cli.named_inputs import data_fields

    told = ask(answers, sys.stdin.readline, _say)
    if told is None:
        return None
    there = data_fields(told, base)
    return ask(told, sys.stdin.readline, _say, lambda so_far: unnamed_fields(so_far, there))


def _say(text: str) -> None:
    print(text, end="", file=sys.stderr, flush=True)


def from_verl(options: argparse.Namespace) -> int:
    """Write the manifest of a verl script, and tell what has no counterpart."""
    if options.output is not None and (why := _in_the_way(options.output, options.force)) is not None:
        return refuse(why)
    from rljob_runtime.authoring.verl.convert import Inconvertible, convert
    from rljob_runtime.authoring.verl.launch import NoLaunch, read_launch
    from rljob_runtime.authoring.verl.listing import listing

    script: Path = options.script
    name = called(script)
    try:
        text = read_text_file(script)
    except OSError as error:
        return refuse(f"rljob: {name} cannot be read: {error.strerror}.")
    except UnicodeDecodeError as error:
        line, fault = no_text(error)
        return refuse(f"{name}:{line}  {fault}.")
    try:
        conversion = convert(read_launch(text, dict(options.set)), script.name)
    except NoLaunch as error:
        return refuse(f"{name}:{error.line}  {error}.")
    except Inconvertible as error:
        return refuse(f"rljob: {name} makes no valid manifest: {error}")
    code = _put(conversion.text, options.output, options.force)
    if code == ExitCode.DONE:
        print(listing(conversion, name), file=sys.stderr)
    return code


def _in_the_way(output: Path, force: bool) -> str | None:
    """Why nothing can be written to a file, from what there is under its name; None where it can."""
    if output.is_dir():
        return f"rljob: {output} is a folder: name a file with --output, as {output / 'job.yaml'}."
    if (why := no_place(output, "--output")) is not None:
        return f"rljob: {why}."
    return _there_already(output) if output.exists() and not force else None


def _there_already(output: Path) -> str:
    return f"rljob: {output} exists already: name another file with --output, or add --force."


def _put(text: str, output: Path | None, force: bool, in_cluster: bool = False) -> int:
    """Write a manifest to a file, or print it where none is named."""
    if output is None:
        print(text, end="")
        return ExitCode.DONE
    if (why := _in_the_way(output, force)) is not None:
        return refuse(why)
    try:
        with output.open("w" if force else "x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        return refuse(_there_already(output))
    except OSError as error:
        return fail(f"rljob: {output} cannot be written: {error.strerror}.")
    # In a cluster model and data are on a volume that is not there here.
    following = f"kubectl apply -f {output}" if in_cluster else f"rljob validate {output}"
    print(f"{output}: written. Next: {following}", file=sys.stderr)
    return ExitCode.DONE
