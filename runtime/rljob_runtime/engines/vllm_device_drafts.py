"""Drafts that a rank of a vLLM engine makes on its device, where vLLM's newer model runner has all tokens.

That runner asks a speculator for the drafts of a step's requests when their tokens are drawn, before it is
known on the CPU which ones they are, and reads them from the device in the next step. Here it is one that
looks the last tokens of a response up by `tensor_search`: in its own text and in finished responses to the
same prompt, which are on the device while such a response runs. It does so when the next step begins, and
only where that one tries drafts: a search takes the runner's thread about as long as a step.

Guarantees: nothing is waited for; all ranks of an engine make the same drafts, as they have the same texts.
Drafts are made, or not, and found or not: what is drawn has the same distribution, for vLLM checks each.

Runs in vLLM's workers; `obstacle` in the host's process.
"""

import inspect
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from rljob_runtime.engines.kept_texts import KeptTexts
from rljob_runtime.engines.tensor_search import END, drafts
from rljob_runtime.engines.vllm_drafter import PROMPT_TOKENS
from rljob_runtime.engines.vllm_read import differing
from rljob_runtime.engines.vllm_swap import names

MOST_TOKENS = 2**20
"""Tokens of finished responses that a step looks through at most, of all its requests together. They bound
what a search takes: `COMPARED` bytes for each token, and a few times its own, of memory meanwhile."""
_SHAPES = 256
"""Texts are looked through in multiples of so many tokens: memory of few sizes is used again."""


class Speculator:
    """What vLLM's model runner asks for drafts."""

    supports_mm_inputs = False
    draft_logits = None
    """Drafts are certain of each token."""

    def __init__(
        self, runner: Any, draft_tokens: int, minimum_match: int, at_most_running: int, kept_tokens: int
    ) -> None:
        """`runner`: vLLM's; `kept_tokens` how many tokens of finished responses and of their prompts are
        held."""
        self._runner = runner
        self._draft_tokens = draft_tokens
        self._minimum_match = minimum_match
        self._at_most_running = at_most_running
        self._kept = KeptTexts(kept_tokens)
        self._prompts: dict[str, bytes] = {}
        """By request in the runner."""
        self._none = torch.zeros((runner.max_num_reqs, draft_tokens), dtype=torch.int64, device=runner.device)
        self._finished: tuple[tuple[bytes, ...], torch.Tensor] | None = None
        """What is looked through for the requests of a step, by their prompts."""
        self._drawn: Any = None
        """The newest step that drew tokens, as vLLM describes it; None: it is not to be followed by
        drafts."""

    def learn(self, prompt: bytes, response: bytes) -> None:
        """Draft from a finished response; both are int32 tokens."""
        self._kept.learn(prompt, response)
        self._finished = None

    def note(self, scheduler_output: Any) -> None:
        """Find drafts where a step tries some, and take notice of the requests that begin and end with it;
        before the step."""
        drawn, self._drawn = self._drawn, None
        if drawn is not None and scheduler_output.scheduled_spec_decode_tokens:
            self._runner.req_states.draft_tokens[drawn.idx_mapping] = self._search(drawn)
        for name in scheduler_output.finished_req_ids:
            self._prompts.pop(name, None)
        for new in scheduler_output.scheduled_new_reqs:
            count = (new.sampling_params.extra_args or {}).get(PROMPT_TOKENS)
            if count is not None:
                self._prompts[new.req_id] = np.array(new.prefill_token_ids[:count], np.int32).tobytes()

    @torch.inference_mode()
    def propose(self, input_batch: Any, *_: Any, dummy_run: bool = False, **__: Any) -> torch.Tensor:
        """What stands for drafts of each request of a step whose tokens were drawn, until it is known
        whether the next step tries any: int64 of shape (requests, tokens)."""
        rows = input_batch.num_reqs
        if not dummy_run:
            self._drawn = input_batch if rows <= self._at_most_running else None
        return self._none[:rows]

    @torch.inference_mode()
    def _search(self, input_batch: Any) -> torch.Tensor:
        """Drafts for each request of a step whose tokens were drawn: int64 of shape (requests, tokens)."""
        states = self._runner.req_states
        # The CPU knows a bound alone: as if all drafts of the step before, and of this one, were kept.
        longest = states.num_computed_tokens_np[input_batch.idx_mapping_np] + input_batch.num_scheduled_tokens
        width = min(_rounded(int(longest.max()) + 1), self._runner.max_model_len)
        own = states.all_token_ids.gpu[:, :width].index_select(0, input_batch.idx_mapping)
        lengths = states.total_len.gpu.index_select(0, input_batch.idx_mapping).long().clamp(1, width)
        finished = self._looked_through(input_batch.req_ids)
        return drafts(finished, own, lengths, self._minimum_match, self._draft_tokens)[0]

    def _looked_through(self, requests: list[str]) -> torch.Tensor:
        prompts = tuple(self._prompts.get(name, b"") for name in requests)
        if self._finished is None or self._finished[0] != prompts:
            most = MOST_TOKENS // len(prompts)
            texts = [self._kept.of(prompt, most) for prompt in prompts]
            table = np.full((len(texts), _rounded(max(map(len, texts)))), END, np.int32)
            for row, text in zip(table, texts, strict=True):
                row[: len(text)] = text
            device, looked_through = self._runner.device, torch.from_numpy(table)
            if device.type != "cpu":
                # A copy from memory that is not pinned would wait for the step under way.
                looked_through = looked_through.pin_memory()
            self._finished = prompts, looked_through.to(device, non_blocking=True)
        return self._finished[1]


def _rounded(tokens: int) -> int:
    return -(-tokens // _SHAPES) * _SHAPES


def draft_on_device(runner: Any, speculator: Speculator, draft_tokens: int) -> None:
    """Have vLLM's newer model runner, built without drafts, ask `speculator` for them from now on."""
    from vllm.v1.worker.gpu.spec_decode.rejection_sampler import RejectionSampler

    runner.num_speculative_steps = runner.req_states.num_speculative_steps = draft_tokens
    runner.req_states.draft_tokens = torch.zeros(
        (runner.max_num_reqs, draft_tokens), dtype=torch.int64, device=runner.device
    )
    runner.sampler.num_speculative_tokens = 1 + draft_tokens
    # Newer versions take it for the most logits of a request. Graphs are captured by now.
    runner.decode_query_len = 1 + draft_tokens
    checked = SimpleNamespace(
        num_speculative_tokens=draft_tokens,
        rejection_sample_method="standard",
        enable_adaptive_verification=False,
    )
    runner.rejection_sampler = RejectionSampler(runner.sampler, checked, runner.device)
    runner.speculator = speculator
    add_requests = runner.add_requests

    def noted(scheduler_output: Any) -> None:
        speculator.note(scheduler_output)
        add_requests(scheduler_output)

    runner.add_requests = noted


def obstacle(config: Any, factory: str | None) -> str:
    """Why an engine that vLLM configured so, without drafts, can't make any on its device; "" where it can.
    `factory` names what makes its scheduler; None: vLLM itself. Imports vLLM."""
    if factory is None:
        return "the scheduler is vLLM's own"
    if not config.use_v2_model_runner:
        return "vLLM runs this model with its older model runner"
    if config.parallel_config.pipeline_parallel_size > 1:
        return "the model's layers are on several ranks"
    # Of tokens outside a window vLLM forgets the keys once it has counted drafts that may not be kept.
    model = config.model_config
    kinds = set(getattr(model.hf_text_config, "layer_types", None) or ["full_attention"])
    if kinds != {"full_attention"} or model.get_sliding_window() is not None or model.has_inner_state:
        return "some of the model's layers do not keep all tokens"
    return differing(misfit())


def misfit() -> list[str]:
    """What of this vLLM is not as it is needed here; nothing where all is. Imports vLLM."""
    from vllm.v1.core.sched.scheduler import Scheduler
    from vllm.v1.request import Request
    from vllm.v1.worker.gpu.model_runner import GPUModelRunner
    from vllm.v1.worker.gpu.spec_decode.rejection_sampler import RejectionSampler
    from vllm.v1.worker.gpu.states import RequestState

    kept = ("all_token_ids", "total_len", "num_computed_tokens_np", "draft_tokens", "num_speculative_steps")
    asked = list(inspect.signature(RejectionSampler.__init__).parameters)
    runner = GPUModelRunner
    runs = [inspect.unwrap(each) for each in (runner.execute_model, runner.sample_tokens, runner.sample)]
    needed = {
        "GPUModelRunner.execute_model": names(runs[0], "add_requests"),
        "GPUModelRunner.sample_tokens": names(runs[1], "propose") and names(runs[1], "draft_tokens"),
        "GPUModelRunner.sample": names(runs[2], "rejection_sampler") and names(runs[2], "draft_logits"),
        "RequestState": all(names(RequestState.__init__, each) for each in kept),
        "RejectionSampler": asked[:4] == ["self", "sampler", "spec_config", "device"],
        "Scheduler.schedule": names(Scheduler.schedule, "spec_token_ids"),
        "Request.is_prefill_chunk": names(Request.__init__, "is_prefill_chunk"),
    }
    return [name for name, fits in needed.items() if not fits]
