"""Tokens of running requests, and their log-probabilities, kept where they are made until somebody asks.

Pure. Guarantees: what is taken is what was added, in order; of requests that run no more nothing is kept.
"""

from array import array
from collections.abc import Container

import numpy as np
from numpy.typing import NDArray


class Held:
    """Of one request: tokens, and as many log-probabilities. Both are added to in place, once a step for each
    running request: a method for it would take longer than what it does."""

    __slots__ = ("log_probs", "tokens")

    def __init__(self) -> None:
        self.tokens: list[int] = []
        self.log_probs = array("f")


class HeldOutputs(dict[str, Held]):
    """By request; see the module's guarantees. A request that is not known has nothing yet."""

    def __missing__(self, request_id: str) -> Held:
        held = self[request_id] = Held()
        return held

    def take(self, request_id: str) -> tuple[list[int], NDArray[np.float32]]:
        """What was added for a request since it was last taken: n tokens, and log-probabilities of shape
        (n,). They are kept no longer."""
        held = self.pop(request_id, None) or Held()
        return held.tokens, np.array(held.log_probs, np.float32)

    def waiting(self) -> list[str]:
        """The requests of which there is something to take."""
        return [name for name, held in self.items() if held.tokens]

    def forget_all_but(self, running: Container[str]) -> None:
        """Only the requests in `running` may still be asked for."""
        for name in [name for name in self if name not in running]:
            del self[name]
