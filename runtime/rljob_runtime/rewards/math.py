"""Rewards for mathematical answers, judged by the math-verify library.

Guarantees: answers are compared by value, not by text; a response whose answer cannot be read or compared is
wrong; a comparison that takes too long, and a reference that is no answer, raise, so that the sample counts
as failed and is not trained as wrong.
"""

import re

from math_verify import parse, verify
from math_verify.errors import TimeoutException

from rljob_runtime.rewards import RewardInput

_DELIMITED = re.compile(r"\$|\\boxed|\\\(|\\\[")


def math_answer(
    sample: RewardInput, correct: float = 1.0, wrong: float = 0.0, timeout_seconds: int = 5
) -> float:
    """`correct` when the response's final answer equals the reference, else `wrong`.

    The final answer is what math-verify extracts: what is in \\boxed{...} (several boxes are one set), else
    the last formula or number. The reference is LaTeX or plain text; of a GSM8K solution the part after
    `####` counts. Parsing and comparing may take `timeout_seconds` each. Works in the main thread only,
    because the library's time limit is a signal. Raises ValueError for a sample without a usable reference,
    and TimeoutError.
    """
    reference = reference_text(sample.answer)
    try:
        wanted = parse(reference, parsing_timeout=timeout_seconds, raise_on_error=True)
        if not wanted:
            raise ValueError(f"the reference answer {sample.answer!r} is no number or formula")
        try:
            found = parse(sample.response, parsing_timeout=timeout_seconds, raise_on_error=True)
            equal = verify(wanted, found, timeout_seconds=timeout_seconds, raise_on_error=True)
        except Exception:  # noqa: BLE001 - whatever the parser makes of a response that is no mathematics
            return wrong
    except TimeoutException as error:  # a BaseException, which would end the worker
        raise TimeoutError(f"math-verify took longer than {timeout_seconds} s") from error
    return correct if equal else wrong


def reference_text(answer: str | None) -> str:
    """The reference in the form that the parser reads whole: between dollar signs.

    Without them the parser takes the last number of "2\\sqrt{3}". Raises ValueError where there is none.
    """
    final = (answer or "").rpartition("####")[2].strip()
    if not final:
        raise ValueError("the prompt has no reference answer (see data.answerField)")
    return final if _DELIMITED.search(final) else f"${final}$"
