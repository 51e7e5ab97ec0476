"""What it means that wandb does not begin a run, and what to do about it. Pure.

Its errors have no status of the answer but, of some, in their words. Where that may help it asks again by
itself, and says so when it gives up; any other answer stays the same until a person changes something.
"""

import re

from rljob_runtime.trace.loggers.answers import Answer, answer_of, what_to_do

_KEY = "WANDB_API_KEY"
_FIELD = "training.loggers.wandb"
_STATUS = re.compile(r"\b(?:error|HTTP) (\d{3})\b", re.IGNORECASE)
_GAVE_UP = re.compile(r"\b(?:timed out|deadline exceeded)\b", re.IGNORECASE)


def about_the_answer(words: str) -> str | None:
    """About an error of its server, or of the way there; None where asking again is all there is to do."""
    told = _STATUS.search(words)
    answer = answer_of(int(told[1])) if told else Answer.AWAY if _GAVE_UP.search(words) else Answer.REFUSED
    match answer:
        case Answer.DENIED:
            assert told is not None
            return what_to_do(int(told[1]), _KEY, _FIELD)
        case Answer.REFUSED:
            return (
                f"see that the key in {_KEY} in the driver's environment may write there and {_FIELD} names "
                "what is there, and resume the job, or give that right to the key that is set"
            )
        case _:
            return None


def about_the_key() -> str:
    """About a key that it does not take for one."""
    return what_to_do(401, _KEY, _FIELD)


def about_the_names() -> str:
    """About what it is given beside the key."""
    return f"correct {_FIELD}, and resume the job"
