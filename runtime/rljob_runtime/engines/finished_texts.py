"""Finished responses on their way to the drafter of an engine, which draws on them while few requests run."""

from collections import deque

import numpy as np

from rljob_api.rollout import Speculation
from rljob_runtime.engines.protocol import Request
from rljob_runtime.samples import Generation

FinishedText = tuple[bytes, bytes]
"""A prompt and a finished response to it, each as the bytes of its int32 tokens."""


class FinishedTexts:
    """What the drafter was not told yet: it hears of many responses at once, and of none while it rests."""

    def __init__(self, options: Speculation) -> None:
        self._kept_tokens = options.suffix.kept_tokens if options.suffix is not None else 0
        self._at_most_running = options.at_most_running
        self._held = 0
        self._texts: deque[FinishedText] = deque()

    def add(self, request: Request, got: Generation) -> None:
        """Hold the whole response that ended with `got`, all its attempts together, unless it was cut off."""
        if got.finish == "abort":
            return
        prompt = len(request.tokens) - request.generated
        response = np.concatenate([request.tokens[prompt:], got.tokens]).astype(np.int32)
        self._texts.append((request.tokens[:prompt].astype(np.int32).tobytes(), response.tobytes()))
        self._held += len(response)
        while self._held > self._kept_tokens:
            self._held -= len(self._texts.popleft()[1]) // 4

    def due(self, running: int) -> list[FinishedText]:
        """What the drafter is to hear now that `running` requests run; it is not held any more."""
        if running > self._at_most_running:
            return []
        taken, self._held = list(self._texts), 0
        self._texts.clear()
        return taken
