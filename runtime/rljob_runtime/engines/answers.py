"""Which answers of an engine cannot be: it is broken, and what it says is not to be trained. Pure."""

from collections.abc import Mapping

from rljob_runtime.engines.protocol import Request
from rljob_runtime.samples import Generation, spans_cover


def wrong_answer(request: Request, generation: Generation, version: int) -> str | None:
    """What is wrong with what an engine made of a request, as a clause whose subject is the engine; None
    where nothing is. `version`: the newest that its weights may be of, which no token is newer than."""
    tokens, name = len(generation.tokens), request.request_id
    if generation.request_id != name:
        return f"answered request {name} with one for request {generation.request_id}"
    if tokens > request.max_tokens:
        return (
            f"answered request {name} with {tokens} tokens, and {request.max_tokens} were asked for at most"
        )
    if len(generation.log_probs) != tokens:
        return (
            f"answered request {name} with {tokens} tokens and {len(generation.log_probs)} log-probabilities"
        )
    if not spans_cover(generation.spans, tokens):
        return f"answered request {name} with version spans that do not cover its {tokens} tokens"
    newest = max((span.version for span in generation.spans), default=version)
    if newest > version:
        return f"answered request {name} with tokens of version {newest}, and has version {version}"
    return None


def wrong_progress(tokens: Mapping[str, int], most: Mapping[str, int]) -> str | None:
    """What is wrong with a report of progress, as such a clause; None where nothing is. `most`: the tokens
    that each request of the engine may get. Others have ended, or are not known, and are passed over."""
    for name, count in tokens.items():
        if name in most and not 0 <= count <= most[name]:
            return f"reports {count} tokens of request {name}, which may have 0 to {most[name]}"
    return None
