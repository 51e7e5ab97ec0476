"""SIGHUP in processes that tests start."""

import signal


def hear_hang_ups() -> None:
    """Do what is usual at SIGHUP, in this process and those that it starts: whoever runs the tests by `nohup`
    has all of them ignore it."""
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
