"""Finished responses on their way to the drafter of an engine, which draws on them while few requests run."""

from collections import deque

import numpy as np

from rljob_api.rollout import Speculation
from rljob_runtime.engines.protocol import FinishedText, Request
from rljob_runtime.samples import Generation


def finished_text(request: Request, got: Generation) -> FinishedText | None:
    """The whole response that ended with `got`, all its attempts together; None where it was cut off."""
    if got.finish == "abort":
        return None
    prompt = len(request.tokens) - request.generated
    response = np.concatenate([request.tokens[prompt:], got.tokens]).astype(np.int32)
    return request.tokens[:prompt].astype(np.int32).tobytes(), response.tobytes()


class FinishedTexts:
    """What the drafter was not told yet: it hears of many responses at once, and of none while it rests."""

    def __init__(self, options: Speculation) -> None:
        self._kept_tokens = options.suffix.kept_tokens if options.suffix is not None else 0
        self._at_most_running = options.at_most_running
        self._held = 0
        self._texts: deque[FinishedText] = deque()

    def add(self, text: FinishedText) -> None:
        """Hold a response for the drafter."""
        self._texts.append(text)
        self._held += len(text[1]) // 4
        while self._held > self._kept_tokens:
            self._held -= len(self._texts.popleft()[1]) // 4

    def due(self, running: int) -> list[FinishedText]:
        """What the drafter is to hear now that `running` requests run; it is not held any more."""
        if running > self._at_most_running:
            return []
        taken, self._held = list(self._texts), 0
        self._texts.clear()
        return taken
