"""What the process that checks a manifest answers; pure.

Guarantees: an answer is JSON, never a pickle; whatever a finding's text is, it comes out as it went in.
"""

import json
import signal
import traceback
from collections.abc import Iterable

import msgspec

from rljob_runtime.manifest.load import Finding


class Verdict(msgspec.Struct, frozen=True):
    """What was found of a manifest."""

    over: float
    """When the check was over, in seconds since the epoch."""
    errors: tuple[Finding, ...] = ()
    warnings: tuple[str, ...] = ()
    unusable: str | None = None
    """Why the run in the folder cannot go on from its newest checkpoint; None where it can, or none does."""
    broken: str | None = None
    """The traceback of what ended the check before its end; None where nothing did."""
    missing: str | None = None
    """The module that it did not find, if that ended it."""


def encode(verdict: Verdict) -> bytes:
    # Not by msgspec, which takes no text with bytes in it that are no UTF-8, as names of files may have.
    return json.dumps(msgspec.to_builtins(verdict)).encode()


def decode(answer: bytes) -> Verdict:
    """Raises `ValueError` where it is none."""
    return msgspec.convert(json.loads(answer), Verdict)


def broken_by(error: Exception, warnings: Iterable[str], over: float) -> Verdict:
    """The answer where the check itself failed, which had found these warnings by then."""
    return Verdict(
        over,
        warnings=tuple(warnings),
        broken="".join(traceback.format_exception(error)).rstrip(),
        missing=error.name if isinstance(error, ModuleNotFoundError) else None,
    )


def without_answer(code: int | None) -> str:
    """Why there is no answer, in a line, by the exit code of the process (negative for a signal)."""
    if code == -signal.SIGKILL:
        return (
            "the process that checks the manifest was killed, as the kernel does where memory runs out: make "
            "room, and run it again"
        )
    if code is not None and code < 0:
        name = signal.Signals(-code).name if -code in set(signal.Signals) else f"signal {-code}"
        return f"the process that checks the manifest was ended by {name} before it had an answer"
    return f"the process that checks the manifest ended with exit code {code} before it had an answer"
