"""Exit codes of `rljob` and of the driver, by what is to be done next.

Guarantees: the operator can tell from the code alone whether to start the job again.
"""

from enum import IntEnum


class ExitCode(IntEnum):
    """What an exit code of `rljob` means."""

    DONE = 0
    """The command did what it was asked."""
    FAILED = 1
    """Something broke on the way; the same command may well succeed when it is run again."""
    REFUSED = 2
    """The manifest, the arguments or the machine do not fit; running it again changes nothing."""
    STOPPED = 130
    """Stopped by Ctrl-C, SIGTERM or SIGHUP; a checkpoint was written and `--resume` goes on from it. 128 +
    SIGINT, as shells count."""
