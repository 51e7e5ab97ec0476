"""Which signals ask a run to stop."""

import signal

import pytest

from rljob_runtime.site.stop_signals import stop_signals


@pytest.mark.parametrize(
    ("hang_up", "asked"),
    [
        (signal.SIG_DFL, {signal.SIGINT, signal.SIGTERM, signal.SIGHUP}),
        (lambda *_: None, {signal.SIGINT, signal.SIGTERM, signal.SIGHUP}),
        # As `nohup` has it.
        (signal.SIG_IGN, {signal.SIGINT, signal.SIGTERM}),
    ],
    ids=["default", "handled", "ignored"],
)
def test_a_closed_terminal_asks_unless_that_is_ignored(hang_up, asked) -> None:
    before = signal.signal(signal.SIGHUP, hang_up)
    try:
        assert set(stop_signals()) == asked
    finally:
        signal.signal(signal.SIGHUP, before)
