"""What routing is told of, and what it answers: groups, requests, engines, actions. Plain values. Pure."""

from typing import Literal, NamedTuple, TypeAlias

from rljob_runtime.routing.cost import StepCost


class RequestKey(NamedTuple):
    """A response: which one of which group."""

    uid: int
    """The group: the position of its prompt in the job's sequence."""
    sample: int
    """The response within the group. Policies that look at one response first take response 0, the probe."""


class GroupRequest(NamedTuple):
    """A group to generate."""

    uid: int
    row: int
    """The row of its prompt in the data: groups of one row, in different epochs, tend to have equal
    lengths."""
    prompt_tokens: int
    samples: int
    """Responses."""
    deadline: int = 0
    """Last weight version that may train it."""


class EngineShape(NamedTuple):
    """What is known of an engine when it joins."""

    pool: str
    """ "fast" or "heavy"."""
    limit: int
    """Most requests that it runs at a time."""
    kv_tokens: int | None = None
    """Tokens that its KV cache holds; None where that is not known."""
    cost: StepCost = StepCost()
    lockstep: bool = False
    """Whether it shares each decode step with all others of its pool, which have the same cost."""
    slowness: float = 1.0
    """How many times as long as an ordinary engine of its pool it takes; `cost` contains it."""


class Place(NamedTuple):
    """Run this request on this engine, which has room for it."""

    request: RequestKey
    engine: int


MoveReason: TypeAlias = Literal["long", "tripped", "urgent", "levelled", "stolen", "stuck", "moved"]
"""Why a policy moves a request. It turned out to be long, and goes to the engines for long responses. It
tripped: it has more tokens than its pool lets it have. It was urgent: the next training step waits for it,
and another engine finishes it sooner. It was levelled: its engine would have finished last, and another one
of the same kind first. It was stolen: the same between engines for long responses and others. It was stuck:
its engine did nothing for it, and went on with others; no policy says that. Or it was moved for a reason of
the policy's own."""


class Move(NamedTuple):
    """Take this request out of the engine that runs it."""

    request: RequestKey
    engine: int | None
    """The engine that keeps a place for it; None: it waits again."""
    restart: bool = False
    """Whether its tokens are dropped, so that it begins anew."""
    reason: MoveReason = "moved"


Action: TypeAlias = Place | Move
