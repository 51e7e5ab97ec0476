"""How a command of `rljob` ends that did not succeed.

Guarantees: one message on standard error, and the exit code that says whether to try again.
"""

import sys

from rljob_runtime.exit_codes import ExitCode


def refuse(message: str) -> int:
    """What was asked for does not fit; trying again would not help."""
    print(message, file=sys.stderr)
    return ExitCode.REFUSED


def fail(message: str) -> int:
    """Something went wrong that may go well another time."""
    print(message, file=sys.stderr)
    return ExitCode.FAILED
