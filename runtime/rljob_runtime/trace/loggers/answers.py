"""What a logger's answer to some points means, and what comes next. Pure.

Guarantees: a logger that is away, or does not know the job's key or address, loses nothing by it; points that
a logger refuses hold up no others.
"""

from enum import Enum, auto

_ABOUT_THE_SENDER = frozenset({401, 403, 404, 405, 407, 410})
"""The key or the address is wrong, or a server in between answers: other points would fare no better."""
_LATER = frozenset({408, 425, 429})
"""Too slow, too early, too many requests: the same points may be taken later."""


class Answer(Enum):
    """What became of an attempt to send."""

    TAKEN = auto()
    AWAY = auto()
    """The logger did not see to them: whether it takes them is open."""
    REFUSED = auto()
    """It will not take them, however often they come."""


class Next(Enum):
    """What follows an attempt."""

    GO_ON = auto()
    """With the points after them."""
    AGAIN_LATER = auto()
    """The same points, after a pause."""
    SINGLY = auto()
    """The same points, each by itself: at least one of them is refused."""
    LEAVE_OUT = auto()
    """The one point is dropped, and the next one follows."""


def answer_of(status: int) -> Answer:
    """The meaning of an HTTP status."""
    if 200 <= status < 300:
        return Answer.TAKEN
    if 400 <= status < 500 and status not in _ABOUT_THE_SENDER | _LATER:
        return Answer.REFUSED
    return Answer.AWAY


def next_after(answer: Answer, points: int) -> Next:
    """What follows the attempt to send so many points, 1 or more."""
    match answer:
        case Answer.TAKEN:
            return Next.GO_ON
        case Answer.AWAY:
            return Next.AGAIN_LATER
        case Answer.REFUSED:
            return Next.SINGLY if points > 1 else Next.LEAVE_OUT
