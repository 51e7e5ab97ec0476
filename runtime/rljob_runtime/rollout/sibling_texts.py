"""Finished responses that engines are to hear of, so that they draft from what siblings of theirs have said
that finished elsewhere.

An engine that drafts knows what it finished itself. Where a group is spread over engines, or its last
response has moved, that is little.

Guarantees:
- an engine hears of the siblings of what it runs, and only while it gets requests and runs few, as drafts are
  made then: in the body of a batch nothing is sent, nor to one that stands still;
- it hears once of each, and of none that it finished itself;
- of one group it hears of at most so many tokens at once, the newest ones;
- of a group nothing is kept once none of its responses is under way. Till then its own arrays are, which its
  rollout has anyway.
Pure: whoever asks sends what is due, and need not wait for it.
"""

from dataclasses import dataclass, field

import numpy as np

from rljob_api.rollout import Speculation
from rljob_runtime.engines.protocol import FinishedText
from rljob_runtime.rollout.engine_slot import EngineSlot
from rljob_runtime.routing.requests import RequestKey
from rljob_runtime.samples import Prompt, Tokens

MOST_TOKENS = 2**20
"""Most tokens of a group that an engine hears of at once: 4 MiB, a small part of a second on any network."""


@dataclass
class _Group:
    prompt: Tokens
    under_way: int = 0
    """Its responses that have begun, placed or not, and not ended."""
    running: dict[RequestKey, EngineSlot] = field(default_factory=dict)
    """By response, the engine on which it is."""
    finished: list[tuple[Tokens, EngineSlot]] = field(default_factory=list)
    """Complete responses, each with the engine that completed it, oldest first."""
    told: dict[EngineSlot, int] = field(default_factory=dict)
    """How many of `finished` each engine has heard of, or knows of itself."""


@dataclass(frozen=True)
class News:
    """What an engine is to hear of."""

    slot: EngineSlot
    texts: list[FinishedText]


class SiblingTexts:
    """See the module's guarantees."""

    def __init__(self, at_most_running: int, most_tokens: int) -> None:
        """`at_most_running`: engines draft while they run no more than that; `most_tokens`: of one group at
        once."""
        self._at_most_running = at_most_running
        self._most_tokens = most_tokens
        self._groups: dict[int, _Group] = {}

    def begin(self, prompt: Prompt) -> None:
        """A response to this prompt is under way; it has no engine yet."""
        group = self._groups.setdefault(prompt.uid, _Group(prompt.tokens))
        group.under_way += 1

    def placed(self, key: RequestKey, slot: EngineSlot) -> list[News]:
        """A response is about to be submitted to this engine, on which it counts: what is due before it."""
        group = self._groups[key.uid]
        group.running[key] = slot
        return self._due([(group, slot)])

    def left(self, key: RequestKey) -> list[News]:
        """A response has left its engine, on which it counts no more, and is not complete."""
        return self._fewer_run(self._groups[key.uid].running.pop(key))

    def finished(self, key: RequestKey, tokens: Tokens) -> list[News]:
        """The same, and it is complete, with these tokens."""
        group = self._groups[key.uid]
        slot = group.running.pop(key)
        group.finished.append((tokens, slot))
        elsewhere = [(group, other) for other in group.running.values() if other is not slot]
        return self._fewer_run(slot) + self._due(elsewhere)

    def end(self, key: RequestKey) -> None:
        """A response that has begun is under way no more, complete or given up."""
        group = self._groups[key.uid]
        group.running.pop(key, None)
        group.under_way -= 1
        if group.under_way == 0:
            del self._groups[key.uid]

    def _fewer_run(self, slot: EngineSlot) -> list[News]:
        """What is due now that an engine runs a request less: perhaps it drafts from here on."""
        if not self._drafts(slot):
            return []
        uids = {key.uid for key, _ in slot.requests.values()}
        return self._due([(self._groups[uid], slot) for uid in uids if uid in self._groups])

    def _due(self, runs: list[tuple[_Group, EngineSlot]]) -> list[News]:
        """What engines are to hear of groups of which they run a response."""
        found = []
        for group, slot in runs:
            if self._drafts(slot) and (texts := self._untold(group, slot)):
                found.append(News(slot, texts))
        return found

    def _drafts(self, slot: EngineSlot) -> bool:
        return slot.joined and slot.running <= self._at_most_running

    def _untold(self, group: _Group, slot: EngineSlot) -> list[FinishedText]:
        """Of a group, what an engine has not heard of; it counts as told."""
        new = group.finished[group.told.get(slot, 0) :]
        group.told[slot] = len(group.finished)
        chosen: list[Tokens] = []
        room = self._most_tokens
        for tokens, where in reversed(new):
            if where is not slot:
                room -= len(tokens)
                if room < 0:
                    break
                chosen.insert(0, tokens)
        prompt = _bytes(group.prompt) if chosen else b""
        return [(prompt, _bytes(tokens)) for tokens in chosen]


def sibling_texts(speculation: Speculation | None) -> SiblingTexts | None:
    """For engines that draft like that; None where finished siblings are of no use to them."""
    if speculation is None or speculation.suffix is None:
        return None
    return SiblingTexts(speculation.at_most_running, min(MOST_TOKENS, speculation.suffix.kept_tokens))


def _bytes(tokens: Tokens) -> bytes:
    return tokens.astype(np.int32, copy=False).tobytes()
