"""When an engine will have finished what it runs: the prediction that placement and moves are weighed by.

Pure.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

from rljob_runtime.routing.requests import EngineShape


class Load(NamedTuple):
    """Requests of about the same length on one engine."""

    number: float
    """How many; a fraction where the requests of several engines are shared out in thought."""
    remaining: float
    """Tokens that each will still generate."""
    kv_tokens: float
    """Tokens that each has in a KV cache, or needs there to begin."""
    fill: float = 0.0
    """Tokens of each that are to be prefilled before it runs: those of what waits."""


def drain_seconds(engine: EngineShape, loads: Sequence[Load]) -> float:
    """Seconds until an engine has finished these requests, the shortest first in `loads`, if no other comes.

    With each that ends fewer run, and steps become shorter. What does not fit at a time runs in turn. While
    one is prefilled the others stand still."""
    fill = sum([load.number * load.fill for load in loads])
    return _decode_seconds(engine, loads) + engine.cost.per_prefill_token * fill


def _decode_seconds(engine: EngineShape, loads: Sequence[Load]) -> float:
    running = sum([load.number for load in loads])
    kv = sum([load.number * load.kv_tokens for load in loads])
    if running > engine.limit or (engine.kv_tokens is not None and kv > engine.kv_tokens):
        return _in_turn(engine, loads)
    seconds, done, step = 0.0, 0.0, engine.cost.step
    for number, remaining, kv_tokens, _ in loads:
        steps = remaining - done
        if steps > 0:
            # The cache grows by a token for each request and step: half of that on average.
            seconds += steps * step(math.ceil(running), kv + running * steps / 2)
            kv += running * steps
            done = remaining
        running -= number
        kv -= number * (kv_tokens + done)
    return seconds


def _in_turn(engine: EngineShape, loads: Sequence[Load]) -> float:
    """The same for more requests than fit at a time: all their tokens at a full batch, and not less than the
    longest takes beside a full batch."""
    requests = sum(load.number for load in loads)
    tokens = sum(load.number * load.remaining for load in loads)
    # While it runs a request has half of its remaining tokens in the cache on average.
    kv = sum(load.number * (load.kv_tokens + load.remaining / 2) for load in loads) / requests
    batch = float(engine.limit)
    if engine.kv_tokens is not None:
        batch = max(1.0, min(batch, engine.kv_tokens / max(1.0, kv)))
    step = engine.cost.step(math.ceil(batch), batch * kv)
    return max(tokens / batch, loads[-1].remaining) * step
