"""What a logger's answer to some points means, and what comes next. Pure.

Guarantees: a logger that is away, or does not know the job's key or address, loses nothing by it; points that
a logger refuses hold up no others.
"""

from enum import Enum, auto

_KEY = frozenset({401, 403})
_PROXY = 407
_ADDRESS = frozenset({404, 405, 410})
_ABOUT_THE_SENDER = _KEY | _ADDRESS | {_PROXY}
"""The key or the address is wrong, or a server in between answers: other points would fare no better."""
_LATER = frozenset({408, 425, 429})
"""Too slow, too early, too many requests: the same points may be taken later."""


class Answer(Enum):
    """What became of an attempt to send."""

    TAKEN = auto()
    AWAY = auto()
    """The logger did not see to them: whether it takes them is open."""
    DENIED = auto()
    """It does not take the job's key, or has no such address, until a person changes something."""
    REFUSED = auto()
    """It will not take them, however often they come."""


class Next(Enum):
    """What follows an attempt."""

    GO_ON = auto()
    """With the points after them."""
    AGAIN_LATER = auto()
    """The same points, after a pause."""
    MUCH_LATER = auto()
    """The same points, after a pause in which a person may change something."""
    SINGLY = auto()
    """The same points, each by itself: at least one of them is refused."""
    LEAVE_OUT = auto()
    """The one point is dropped, and the next one follows."""


def answer_of(status: int) -> Answer:
    """The meaning of an HTTP status."""
    if 200 <= status < 300:
        return Answer.TAKEN
    if status in _ABOUT_THE_SENDER:
        return Answer.DENIED
    if 400 <= status < 500 and status not in _LATER:
        return Answer.REFUSED
    return Answer.AWAY


def next_after(answer: Answer, points: int) -> Next:
    """What follows the attempt to send so many points, 1 or more."""
    match answer:
        case Answer.TAKEN:
            return Next.GO_ON
        case Answer.AWAY:
            return Next.AGAIN_LATER
        case Answer.DENIED:
            return Next.MUCH_LATER
        case Answer.REFUSED:
            return Next.SINGLY if points > 1 else Next.LEAVE_OUT


def what_to_do(status: int, keys: str, address: str) -> str:
    """About an answer that is `Answer.DENIED`. `keys`: the variables that hold the logger's key; `address`:
    the field of the RLJob that says where it is."""
    if status in _KEY:
        return (
            f"it does not take the job's key: set {keys} in the driver's environment to one that may write "
            "there, and resume the job, or give that right to the key that is set"
        )
    if status == _PROXY:
        return "a proxy on the way asks who is there: name the proxy with a user and a password"
    return f"nothing there takes metrics: correct {address}, and resume the job"
