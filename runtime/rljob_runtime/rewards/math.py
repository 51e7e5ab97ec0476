"""Rewards for mathematical answers, judged by the math-verify library.

Guarantees: answers are compared by value, not by text; a response whose answer cannot be read or compared is
wrong; a comparison that takes too long, and a reference that is no answer, raise, so that the sample counts
as failed and is not trained as wrong; what the library loads is loaded with this module, outside the time
limits of responses.
"""

import logging
import re
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

from math_verify import parse, verify

from rljob_runtime.rewards import RewardInput

_DELIMITED = re.compile(r"\$|\\boxed|\\\(|\\\[")
_AGAIN_SECONDS = 1.0
"""Seconds until a time limit interrupts again what goes on after the first time."""

# It warns that its time limit is off.
logging.getLogger("math_verify").setLevel(logging.ERROR)


def _load() -> None:
    """Compare once: at its first formulas the library loads its parser and parts of sympy, which on a busy
    machine can take as long as a response's time limit."""
    first, second = (parse(text, parsing_timeout=None) for text in ("$(x+1)^2$", r"$x^2+2x+\frac{2}{2}$"))
    verify(first, second, timeout_seconds=None)


_load()


class _TooLong(BaseException):
    """No `Exception`: parser and algebra catch all of those."""


def math_answer(
    sample: RewardInput, correct: float = 1.0, wrong: float = 0.0, timeout_seconds: int = 5
) -> float:
    """`correct` when the response's final answer equals the reference, else `wrong`.

    The final answer is what math-verify extracts: what is in \\boxed{...} (several boxes are one set), else
    the last formula or number. The reference is LaTeX or plain text; of a GSM8K solution the part after
    `####` counts. Parsing and comparing may take `timeout_seconds` each. Works in the main thread only, since
    the time limit is a signal. Raises ValueError for a sample without a usable reference, and TimeoutError.
    """
    reference = reference_text(sample.answer)
    try:
        with _limit(timeout_seconds):
            wanted = parse(reference, parsing_timeout=None, raise_on_error=True)
        if not wanted:
            raise ValueError(f"the reference answer {sample.answer!r} is no number or formula")
        try:
            with _limit(timeout_seconds):
                found = parse(sample.response, parsing_timeout=None, raise_on_error=True)
            with _limit(timeout_seconds):
                equal = verify(wanted, found, timeout_seconds=None, raise_on_error=True)
        except Exception:  # noqa: BLE001 - whatever the parser makes of a response that is no mathematics
            return wrong
    except _TooLong as error:
        raise TimeoutError(f"math-verify took longer than {timeout_seconds} s") from error
    return correct if equal else wrong


@contextmanager
def _limit(seconds: float) -> Iterator[None]:
    """Raises `_TooLong` in a body that takes longer, and again while it goes on: Python drops what a signal
    raises in a destructor or in a callback of the garbage collector. The library's own limit raises once."""

    def interrupt(*_: Any) -> NoReturn:
        raise _TooLong

    handler = signal.signal(signal.SIGALRM, interrupt)
    timer = signal.setitimer(signal.ITIMER_REAL, seconds, _AGAIN_SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, *timer)
        signal.signal(signal.SIGALRM, handler)


def reference_text(answer: str | None) -> str:
    """The reference in the form that the parser reads whole: between dollar signs.

    Without them the parser takes the last number of "2\\sqrt{3}". Raises ValueError where there is none.
    """
    final = (answer or "").rpartition("####")[2].strip()
    if not final:
        raise ValueError("the prompt has no reference answer (see data.answerField)")
    return final if _DELIMITED.search(final) else f"${final}$"
