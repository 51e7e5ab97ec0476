"""Which tokens of a response are trained, where a step does not wait for what outlives the bound
(`async.staleTokens: mask`).

Guarantees: no token that is trained is older than the bound; what is not trained is a beginning of the
response, so that it is context of the rest, as the prompt is.

The idea is slime's (`--mask-offpolicy-in-partial-rollout`); here the exact version of each token decides.
Pure: no clock, no I/O.
"""

from collections.abc import Sequence

from rljob_runtime.groups.staleness import Bound
from rljob_runtime.samples import Span


def oldest_trained(bound: Bound, version: int) -> int | None:
    """The oldest version whose tokens a step trains that begins with `version`; None: any, since a step
    waits until all tokens are within the bound."""
    return version - bound.versions if bound.masks else None


def context_tokens(spans: Sequence[Span], oldest: int | None) -> int:
    """How many tokens from its first one on are context of a response with these spans: up to the last that
    is older than version `oldest`. All of them where none is fresh; 0 where `oldest` is None."""
    # Versions ascend along a response, so that everything behind the last stale token is fresh.
    return max((span.end for span in spans if oldest is not None and span.version < oldest), default=0)
