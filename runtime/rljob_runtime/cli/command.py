"""One call of `rljob`.

Guarantees: errors are single lines on standard error; the exit code says whether to try again
(`exit_codes.py`).
"""

import errno
import io
import os
import select
import sys
from collections.abc import Sequence
from typing import TextIO

from rljob_runtime.cli.arguments import parser
from rljob_runtime.cli.early_interrupt import INTERRUPTED
from rljob_runtime.cli.endings import fail, refuse
from rljob_runtime.cli.extensions import CommandMissing
from rljob_runtime.exit_codes import ExitCode
from rljob_runtime.view.lasting import discard

_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
"""Of a disk."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; the exit code. argparse itself exits with 2 for wrong arguments."""
    arguments = sys.argv[1:] if arguments is None else arguments
    _open_standard_streams()
    try:
        options = parser(arguments[0] if arguments else None).parse_args(arguments)
        code: int = options.command(options)
        sys.stdout.flush()
    except BrokenPipeError:
        # Whoever reads has read enough, as `head` does.
        if not _unread(sys.stdout):
            raise
        discard(sys.stdout)
        return ExitCode.DONE
    except OSError as error:
        # Of a file it has the name.
        if error.filename is not None or error.errno not in _FULL:
            raise
        discard(sys.stdout)
        return fail(f"rljob: the output cannot be written: {error.strerror}.")
    except CommandMissing as error:
        return refuse(str(error))
    except ModuleNotFoundError as error:
        # A module of this project that is missing is a defect, and no package to install.
        if error.name is None or error.name.startswith("rljob"):
            raise
        return refuse(
            f"rljob: the package {error.name} is not installed: from the checkout, pip install '.[runtime]'."
        )
    except KeyboardInterrupt:
        print(INTERRUPTED, file=sys.stderr)
        return ExitCode.STOPPED
    return code


def _open_standard_streams() -> None:
    """Have those lead nowhere that the caller has closed, as some do who start daemons: for Python they are
    None, and a file that is opened next would get their descriptors, to which libraries write."""
    while (descriptor := os.open(os.devnull, os.O_RDWR)) in range(3):
        # As standard streams are, and a file that Python opens is not.
        os.set_inheritable(descriptor, True)
    os.close(descriptor)
    sys.stdin = sys.stdin or open(0, closefd=False)  # noqa: SIM115 - as long as the process
    sys.stdout = sys.stdout or open(1, "w", closefd=False)  # noqa: SIM115
    sys.stderr = sys.stderr or open(2, "w", closefd=False)  # noqa: SIM115
    # A terminal may lack characters that names, texts of models and drawings have.
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")


def _unread(out: TextIO) -> bool:
    """Whether the reader of `out` has gone."""
    poll = select.poll()
    # Errors are told without being asked for.
    poll.register(out, 0)
    return any(event & select.POLLERR for _, event in poll.poll(0))
