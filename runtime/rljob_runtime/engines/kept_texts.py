"""Finished responses by their prompt, of which only so many tokens are kept.

Pure. Guarantees: what is looked through for a prompt are its newest responses, whole, at most so many tokens;
where more is kept than is allowed, the prompts that came first go.
"""

from collections import deque

import numpy as np
from numpy.typing import NDArray

from rljob_runtime.engines.tensor_search import END

_END = np.array([END], np.int32)


class KeptTexts:
    """Of one engine. Prompts and responses are int32 tokens."""

    def __init__(self, kept_tokens: int) -> None:
        """`kept_tokens`: of responses and of their prompts."""
        self._kept_tokens = kept_tokens
        self._held = 0
        self._texts: dict[bytes, deque[NDArray[np.int32]]] = {}

    def learn(self, prompt: bytes, response: bytes) -> None:
        """Keep a response."""
        if prompt not in self._texts:
            self._texts[prompt] = deque()
            self._held += len(prompt) // 4
        self._texts[prompt].append(np.frombuffer(response, np.int32))
        self._held += len(response) // 4
        while self._held > self._kept_tokens:
            oldest = next(iter(self._texts))
            self._held -= sum(map(len, self._texts.pop(oldest))) + len(oldest) // 4

    def of(self, prompt: bytes, most: int) -> NDArray[np.int32]:
        """The newest responses to a prompt, oldest first, `END` behind each: at most `most` tokens."""
        taken: deque[NDArray[np.int32]] = deque()
        for text in reversed(self._texts.get(prompt, ())):
            most -= len(text) + 1
            if most < 0:
                break
            taken.extendleft((_END, text))
        return np.concatenate([np.empty(0, np.int32), *taken])
