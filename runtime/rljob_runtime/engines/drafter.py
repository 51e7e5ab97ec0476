"""Guesses the next tokens of responses from what was said before: in the response's own text, and in
finished responses to the same prompt.

A guess costs no model: the longest run of tokens at a response's end is looked up, and what followed it
before is the guess. An engine checks the guesses by rejection sampling, so they change how fast tokens come
and never which distribution they are from. Pure: whoever runs it brings texts and takes drafts.
"""

import heapq
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from rljob_runtime.engines.kept_shares import KeptShares
from rljob_runtime.engines.text_index import Match, TextIndex

LONGEST_MATCH = 64
"""Tokens that are compared at most; a longer match would not say more."""
READ_TOKENS = 16384
"""Tokens that are read from texts' beginnings in one call: a few milliseconds at most."""


@dataclass(frozen=True)
class Row:
    """A response that runs."""

    request_id: str
    tokens: NDArray[np.int32]
    """Its prompt and what it has so far, shape (length,)."""
    prompt: bytes
    """What its finished siblings were learned under."""
    room: int
    """Most tokens to draft; 0 while it computes its prompt."""


@dataclass
class _Siblings:
    """Finished responses to one prompt."""

    texts: list[NDArray[np.int32]] = field(default_factory=list)
    index: TextIndex | None = None
    """None while no response to the prompt runs here."""
    read: int = 0
    """How many of `texts` are in the index."""

    @property
    def tokens(self) -> int:
        return sum(len(text) for text in self.texts)


class Drafter:
    """Drafts for the responses of one engine."""

    def __init__(
        self,
        draft_tokens: int,
        minimum_match: int,
        minimum_chance: float,
        kept_tokens: int,
        read_tokens: int = READ_TOKENS,
    ) -> None:
        """`draft_tokens` is the longest draft; `minimum_match` how many tokens must agree at least;
        `minimum_chance` what chance each drafted token must have to be kept; `kept_tokens` how many tokens of
        finished responses and of their prompts are held, the oldest prompts going first; `read_tokens` how
        many tokens of finished responses, and how many of those that run, a call of `draft` reads from their
        beginnings."""
        self._draft_tokens = draft_tokens
        self._minimum_match = minimum_match
        self._shares = KeptShares(minimum_chance)
        self._kept_tokens = kept_tokens
        self._read_tokens = read_tokens
        self._held = 0
        self._siblings: dict[bytes, _Siblings] = {}
        self._indexed: set[bytes] = set()
        """Prompts whose siblings have an index."""
        self._own: dict[str, TextIndex] = {}
        self._drafted: dict[str, tuple[int, int]] = {}
        """By request: length of the match and of the draft, in the last call."""
        self.drafted_tokens = 0
        """Tokens of drafts that were checked."""
        self.accepted_tokens = 0
        """Tokens of these that were kept."""

    @property
    def held_tokens(self) -> int:
        """Tokens of finished responses that are kept, and of their prompts."""
        return self._held

    def learn(self, prompt: bytes, response: NDArray[np.int32]) -> None:
        """Draft from `response`, shape (length,), for requests whose prompt is `prompt`, int32 tokens."""
        if prompt not in self._siblings:
            self._siblings[prompt] = _Siblings()
            self._held += len(prompt) // 4
        self._siblings[prompt].texts.append(response)
        self._held += len(response)
        while self._held > self._kept_tokens:
            oldest = next(iter(self._siblings))
            self._held -= self._siblings.pop(oldest).tokens + len(oldest) // 4
            self._indexed.discard(oldest)

    def sampled(self, request_id: str, count: int) -> None:
        """The step that checked what was drafted last for a request made `count` tokens of its response: the
        drafted ones that were kept, and one more."""
        match, drafted = self._drafted.pop(request_id, (0, 0))
        if drafted and count:
            self._shares.tell(match, drafted, count - 1)
            self.drafted_tokens += drafted
            self.accepted_tokens += count - 1

    def draft(self, rows: list[Row]) -> list[list[int]]:
        """Guesses for each of the responses that run, possibly none.

        Reads only so many texts from their beginnings that no call takes long, a longer one alone: where more
        is new, the first drafts after it are shorter.
        """
        self._forget(rows)
        self._drafted.clear()
        self._read_siblings(rows)
        self._follow(rows)
        return [self._draft_one(row) for row in rows]

    def rest(self) -> None:
        """Nothing is drafted for now: give up what was made to draft fast."""
        self._forget([])
        self._drafted.clear()

    def _forget(self, rows: list[Row]) -> None:
        for name in self._own.keys() - {row.request_id for row in rows}:
            del self._own[name]
        for prompt in self._indexed - {row.prompt for row in rows}:
            self._indexed.remove(prompt)
            siblings = self._siblings[prompt]
            siblings.index, siblings.read = None, 0

    def _read_siblings(self, rows: list[Row]) -> None:
        """Read on in finished responses, those next to whose prompt the fewest were read."""
        unread = []
        for order, prompt in enumerate(dict.fromkeys(row.prompt for row in rows)):
            siblings = self._siblings.get(prompt)
            if siblings is not None and siblings.read < len(siblings.texts):
                unread.append((siblings.read, order, prompt, siblings))
        heapq.heapify(unread)
        room = self._read_tokens
        while unread:
            _, order, prompt, siblings = unread[0]
            text = siblings.texts[siblings.read]
            if room < self._read_tokens and len(text) > room:
                return
            room -= len(text)
            if siblings.index is None:
                siblings.index = TextIndex(self._minimum_match)
                self._indexed.add(prompt)
            siblings.index.extend(text)
            siblings.index.end_text()
            siblings.read += 1
            if siblings.read < len(siblings.texts):
                heapq.heapreplace(unread, (siblings.read, order, prompt, siblings))
            else:
                heapq.heappop(unread)

    def _follow(self, rows: list[Row]) -> None:
        """Read what is new in the texts that are followed, and begin to follow more."""
        for row in rows:
            if row.request_id in self._own:
                index = self._own[row.request_id]
                index.extend(row.tokens[len(index) :])
        room = self._read_tokens
        for row in rows:
            if row.request_id not in self._own:
                if room < self._read_tokens and len(row.tokens) > room:
                    return
                room -= len(row.tokens)
                self._own[row.request_id] = TextIndex(self._minimum_match)
                self._own[row.request_id].extend(row.tokens)

    def _draft_one(self, row: Row) -> list[int]:
        siblings, tail = self._siblings.get(row.prompt), row.tokens[-LONGEST_MATCH:]
        found: list[tuple[Match, TextIndex]] = []
        for index in (self._own.get(row.request_id), siblings.index if siblings is not None else None):
            match = index.longest(tail) if index is not None else None
            if match is not None and index is not None:
                found.append((match, index))
        if not found or row.room <= 0:
            return []
        match, index = max(found, key=lambda one: one[0].length)
        most = min(self._draft_tokens, row.room)
        drafted = index.continuation(match.start, min(most, self._shares.length(match.length)))
        self._drafted[row.request_id] = (match.length, len(drafted))
        return drafted
