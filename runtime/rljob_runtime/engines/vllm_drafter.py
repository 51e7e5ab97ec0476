"""Where vLLM asks our drafter: the class that its speculation method `custom_class` builds in each worker.

vLLM makes the object and calls `propose` after every step; `start`, called by `WeightLoader.start_drafting`
once the engine stands, gives it what vLLM does not: which request a row holds.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from rljob_runtime.engines.drafter import Drafter, Row

PROPOSER = f"{__name__}.Proposer"
"""For vLLM's `speculative_config`."""
PROMPT_TOKENS = "rljob_prompt_tokens"
"""Key of a request's `extra_args`: how many of its first tokens are the prompt that its siblings have too.
What vLLM takes for the prompt has the tokens of earlier attempts in it."""


class Proposer:
    """Drafts while few requests run."""

    def __init__(self, vllm_config: Any) -> None:
        self._longest = int(vllm_config.model_config.max_model_len)
        self._runner: Any = None
        self._drafter: Drafter | None = None
        self._at_most_running = 0
        self._prompts: dict[str, bytes] = {}

    def load_model(self, *_: Any) -> None:
        """vLLM asks every proposer to load its model; this one has none."""

    def start(self, runner: Any, drafter: Drafter, at_most_running: int) -> None:
        """Draft from now on, for the rows of vLLM's model `runner`, while it runs at most that many."""
        self._runner = runner
        self._drafter = drafter
        self._at_most_running = at_most_running

    def learn(self, prompt: bytes, response: bytes) -> None:
        """Draft from a finished response; both are int32 tokens."""
        if self._drafter is not None:
            self._drafter.learn(prompt, np.frombuffer(response, np.int32))

    def counts(self) -> tuple[int, int]:
        """Drafted tokens that were checked, and tokens of these that were kept, since the start."""
        if self._drafter is None:
            return 0, 0
        return self._drafter.drafted_tokens, self._drafter.accepted_tokens

    def propose(
        self,
        sampled_token_ids: list[list[int]],
        num_tokens_no_spec: NDArray[np.int32],
        token_ids_cpu: NDArray[np.int32],
        slot_mappings: Any = None,
    ) -> list[list[int]]:
        """Drafts for each row. `sampled_token_ids` has what each row got in this step, nothing while its
        prompt is computed; the first `num_tokens_no_spec[row]` of `token_ids_cpu[row]` are its whole text."""
        if self._drafter is None:
            return [[] for _ in sampled_token_ids]
        names = self._runner.input_batch.req_ids
        for row, sampled in enumerate(sampled_token_ids):
            self._drafter.sampled(names[row], len(sampled))
        if len(sampled_token_ids) > self._at_most_running:
            self._drafter.rest()
            self._prompts.clear()
            return [[] for _ in sampled_token_ids]
        rows = []
        for row, sampled in enumerate(sampled_token_ids):
            tokens = token_ids_cpu[row, : num_tokens_no_spec[row]]
            # The step that checks a draft samples one token more.
            room = self._longest - len(tokens) - 1 if sampled else 0
            rows.append(Row(names[row], tokens, self._prompt(names[row], tokens), room))
        drafts = self._drafter.draft(rows)
        self._prompts = {row.request_id: row.prompt for row in rows}
        return drafts

    def _prompt(self, name: str, tokens: NDArray[np.int32]) -> bytes:
        if name not in self._prompts:
            extra = self._runner.requests[name].sampling_params.extra_args
            self._prompts[name] = tokens[: extra[PROMPT_TOKENS]].tobytes()
        return self._prompts[name]
