"""What verl imports: its own loop of one turn, with the length of each response told beforehand."""

from collections import Counter
from typing import Any

from verl.experimental.agent_loop.single_turn_agent_loop import SingleTurnAgentLoop

from tests.bench.peers.forced import lengths
from tests.bench.peers.work import SAMPLES

_begun: Counter[int] = Counter()
"""Responses to each prompt that this process began, where verl does not number them."""


class ForcedLengths(SingleTurnAgentLoop):  # type: ignore[misc]
    """The prompt's row tells how many tokens each of its responses has."""

    async def run(self, sampling_params: dict[str, Any], priority: int = 0, **kwargs: Any) -> Any:
        row = int(kwargs["index"])
        number = kwargs.get("session_id", _begun[row] % SAMPLES)
        _begun[row] += 1
        told = int(lengths()[row, number])
        return await super().run(dict(sampling_params, max_tokens=told), priority, **kwargs)
