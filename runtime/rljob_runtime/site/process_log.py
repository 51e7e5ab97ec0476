"""What an actor's process tells its log, which in a cluster is its container's: our own lines from INFO, of
others the warnings."""

import logging
import sys

_OURS = "rljob_runtime"


def begin() -> None:
    """Log to standard error from here on. An actor calls it when it is made; a second call does nothing."""
    ours = logging.getLogger(_OURS)
    if any(handler.get_name() == _OURS for handler in ours.handlers):
        return
    handler = logging.StreamHandler(sys.stderr)
    handler.set_name(_OURS)
    handler.setFormatter(logging.Formatter("%(asctime)s  %(levelname)s %(message)s", "%H:%M:%S"))
    ours.addHandler(handler)
    ours.setLevel(logging.INFO)
