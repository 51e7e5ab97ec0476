"""Finished responses on their way to the drafter of an engine, which draws on them while few requests run."""

from collections import deque
from typing import TypeAlias

import numpy as np

from rljob_api.rollout import Speculation
from rljob_runtime.engines.protocol import FinishedText, Request
from rljob_runtime.samples import Generation

Siblings: TypeAlias = tuple[bytes, list[bytes]]
"""A prompt, and whole responses to it, in the order in which they ended; all are int32 tokens."""


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
        """Tokens of `_texts`, a prompt's counted once."""
        self._texts: dict[bytes, deque[bytes]] = {}

    def add(self, text: FinishedText) -> None:
        """Hold a response for the drafter; where that is too much, the oldest prompts' go first."""
        prompt, response = text
        if prompt not in self._texts:
            self._texts[prompt] = deque()
            self._held += len(prompt) // 4
        self._texts[prompt].append(response)
        self._held += len(response) // 4
        while self._held > self._kept_tokens:
            oldest = next(iter(self._texts))
            self._held -= len(self._texts[oldest].popleft()) // 4
            if not self._texts[oldest]:
                del self._texts[oldest]
                self._held -= len(oldest) // 4

    def due(self, running: int) -> list[Siblings]:
        """What the drafter is to hear now that `running` requests run; it is not held any more."""
        if running > self._at_most_running:
            return []
        taken = [(prompt, list(responses)) for prompt, responses in self._texts.items()]
        self._held, self._texts = 0, {}
        return taken
