"""The signals that ask this process to stop."""

import signal

_ALWAYS = (signal.SIGINT, signal.SIGTERM)


def stop_signals() -> tuple[signal.Signals, ...]:
    """Ctrl-C, SIGTERM, and SIGHUP, which comes where the terminal is closed, unless it is ignored, as `nohup`
    has it."""
    ignored = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    return _ALWAYS if ignored else (*_ALWAYS, signal.SIGHUP)
