"""The commands of `rljob` that write a manifest.

Guarantees: a file that is there is left as it is, unless the user says otherwise; a script is never run.
"""

import argparse
import sys
from pathlib import Path

from rljob_runtime.cli.endings import fail, refuse
from rljob_runtime.exit_codes import ExitCode


def from_verl(options: argparse.Namespace) -> int:
    """Write the manifest of a verl script, and tell what has no counterpart."""
    from rljob_runtime.authoring.verl.convert import Inconvertible, convert
    from rljob_runtime.authoring.verl.launch import NoLaunch, read_launch
    from rljob_runtime.authoring.verl.listing import listing

    script: Path = options.script
    try:
        text = script.read_text(encoding="utf-8")
    except OSError as error:
        return refuse(f"rljob: {script} cannot be read: {error.strerror}.")
    except UnicodeDecodeError:
        return refuse(f"rljob: {script} is not UTF-8 text.")
    try:
        conversion = convert(read_launch(text, dict(options.set)), script.name)
    except NoLaunch as error:
        return refuse(f"{script}:{error.line}  {error}.")
    except Inconvertible as error:
        return refuse(f"rljob: {script} makes no valid manifest: {error}")
    code = _put(conversion.text, options.output, options.force)
    if code == ExitCode.DONE:
        print(listing(conversion, str(script)), file=sys.stderr)
    return code


def _put(text: str, output: Path | None, force: bool) -> int:
    """Write a manifest to a file, or print it where none is named."""
    if output is None:
        print(text, end="")
        return ExitCode.DONE
    try:
        with output.open("w" if force else "x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        return refuse(f"rljob: {output} exists already: name another file with --output, or add --force.")
    except OSError as error:
        return fail(f"rljob: {output} cannot be written: {error.strerror}.")
    print(f"{output}: written. Next: rljob validate {output}", file=sys.stderr)
    return ExitCode.DONE
