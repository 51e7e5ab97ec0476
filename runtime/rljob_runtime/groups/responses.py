"""A response that grows over one or several attempts.

Guarantees: tokens, log-probabilities and version spans of all attempts are joined in order; spans cover the
tokens without gaps.
"""

import hashlib
import math
from dataclasses import dataclass, field

import numpy as np

from rljob_runtime.routing.policy import Expectation
from rljob_runtime.samples import FinishReason, Generation, LogProbs, Span, Tokens, join_spans


@dataclass
class Response:
    """One response to a prompt, so far."""

    began: float
    """When it was asked for, in seconds of the rollouter's clock."""
    tokens: Tokens = field(default_factory=lambda: np.zeros(0, np.int32))
    log_probs: LogProbs = field(default_factory=lambda: np.zeros(0, np.float32))
    spans: tuple[Span, ...] = ()
    finish: FinishReason = "abort"
    """How the newest attempt ended; as if aborted before the first."""
    engine: str = ""
    """The engine of the newest attempt."""
    pool: str = ""
    """The pool of that engine, "fast" or "heavy"."""
    moves: int = 0
    """How often an attempt was at another engine than the one before it."""
    seconds: float = 0.0
    """From `began` to the end of the newest attempt."""
    expected: float | None = None
    """Tokens that it was believed to get in the end when it was placed on its first engine; None where
    routing believes nothing."""
    cut: float | None = None
    """Tokens from which on it would have counted as long then; None where none would have."""

    def expect(self, expectation: Expectation | None) -> None:
        """What routing believes of it, now that it is placed and has no token."""
        if expectation is not None:
            self.expected = expectation.tokens
            self.cut = None if math.isinf(expectation.cut) else expectation.cut

    def begin_anew(self) -> None:
        """Drop what was generated."""
        self.tokens, self.log_probs, self.spans = self.tokens[:0], self.log_probs[:0], ()

    def extend(self, generation: Generation, engine: str, pool: str, now: float) -> None:
        """Add what an attempt generated, at an engine of a pool, that ended `now`."""
        self.tokens = np.concatenate([self.tokens, generation.tokens])
        self.log_probs = np.concatenate([self.log_probs, generation.log_probs])
        self.spans = join_spans(self.spans, generation.spans)
        self.finish = generation.finish
        if self.engine not in ("", engine):
            self.moves += 1
        self.engine, self.pool = engine, pool
        self.seconds = now - self.began


def request_id(uid: int, index: int, attempt: int) -> str:
    """Name of one attempt at response `index` of the group `uid`; unique as long as `attempt` is."""
    return f"{uid}.{index}#{attempt}"


def response_of(request: str) -> str:
    """Name of the response, "uid.index", that a request is an attempt at."""
    return request.partition("#")[0]


def response_seed(job_seed: int, uid: int, index: int) -> int:
    """Seed of a response's sampling, in [0, 2**31): depends on the job's seed and the response alone."""
    # Not Python's `hash`, which differs from process to process: a resumed job draws with the same seeds.
    digest = hashlib.blake2b(f"{job_seed}/{uid}/{index}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") % 2**31
