"""What runs inside vLLM's own processes: loading weights from a folder, drafting, timing their start, and
ending with the host process.

vLLM mixes `WeightLoader` into its worker class, so `self` is the worker. Importing this module in a process
that an engine started makes that process end when the engine's host process does, however that ends.
"""

import gc
import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open

from rljob_api.rollout import Speculation
from rljob_runtime.engines.ascend_log_probs import keep_log_probs_as_asked
from rljob_runtime.engines.core_start import TimedStart, time_start
from rljob_runtime.engines.drafter import Drafter
from rljob_runtime.engines.finished_texts import Siblings
from rljob_runtime.engines.plain_experts import keep_experts_plain
from rljob_runtime.engines.staging_worker import StagingWorker, count_second_set
from rljob_runtime.engines.vllm_device_drafts import Speculator, draft_on_device
from rljob_runtime.engines.vllm_warm_up import warm_up_as_sampled
from rljob_runtime.weights.disabled_group import working

HOST_VARIABLE = "RLJOB_ENGINE_HOST"
"""Environment variable with the id of the process that the engine belongs to."""


class WeightLoader(StagingWorker, TimedStart):
    """Methods that are called on every rank of an engine."""

    def load_folder(self: Any, folder: str) -> None:
        """Replace the model's weights by those of the `*.safetensors` in `folder`.

        Goes through vLLM's layerwise reload: the live parameters have kernel layouts (on CPUs they are
        packed away altogether), so they cannot be copied into. Tensors keep their addresses, so captured
        CUDA graphs stay valid.
        """
        # Here, as vLLM is imported once its environment is set.
        from vllm.config import set_current_vllm_config

        if self.device.type == "cpu":
            _forget_expert_kernels(self.model_runner.get_model())
        # The runner's, as the worker of vllm-ascend 0.23.0 has none; vLLM's own does no more than this.
        with torch.device(self.device), set_current_vllm_config(self.vllm_config):
            self.model_runner.reload_weights(
                weights_iterator=_tensors(Path(folder)), is_checkpoint_format=True
            )
        _repack_embeddings(self.model_runner.get_model())
        if self.device.type != "cpu":
            # The copies run on the device's own time; the answer is to mean that they are done.
            torch.accelerator.synchronize()

    def kv_cache_bytes(self: Any) -> int:
        """What vLLM found that the KV cache may take of the accelerator's memory."""
        return int(self.available_kv_cache_memory_bytes)

    def check_group(self: Any) -> None:
        """Look at the group that vLLM's own engine for weights has joined. Raises `RuntimeError`."""
        working(self.weight_transfer_engine.model_update_group)

    def load_adapter(self: Any, name: str, number: int, folder: str) -> int:
        """Load an adapter; how many of its tensors belong to layers of the model. vLLM says nothing of those
        that belong to none, and generates without them."""
        from vllm.lora.request import LoRARequest

        self.add_lora(LoRARequest(name, number, folder))
        manager = self.model_runner.lora_manager._adapter_manager
        adapter = manager.get_adapter(number)
        if adapter is None:
            return 0
        layers = [found for name in manager.modules if (found := adapter.get_lora(name)) is not None]
        # Of layers that vLLM has made one, such as query, key and value, a list with None for each that has
        # no adapter.
        groups = [each if isinstance(each, list) else [each] for one in layers for each in _matrices(one)]
        return sum(tensor is not None for group in groups for tensor in group)

    def start_drafting(self: Any, options: dict[str, Any]) -> None:
        """Draft as a Speculation says, given in YAML names."""
        speculation = Speculation.model_validate(options)
        kept = speculation.suffix.kept_tokens if speculation.suffix is not None else 0
        runner = self.model_runner
        if self.vllm_config.speculative_config is None:
            speculator = Speculator(
                runner,
                speculation.draft_tokens,
                speculation.minimum_match,
                speculation.at_most_running,
                kept,
            )
            draft_on_device(runner, speculator, speculation.draft_tokens)
            return
        if self.device.type == "cpu":
            repair_rejection_sampler()
        drafter = Drafter(
            speculation.draft_tokens, speculation.minimum_match, speculation.minimum_chance, kept
        )
        runner.drafter.start(runner, drafter, speculation.at_most_running)
        # A draft model must have room for a whole draft, else vLLM drafts zeros for all requests, for which
        # it needs a CUDA stream even on CPUs. Our drafts end where the room does.
        runner.effective_drafter_max_model_len = runner.max_model_len + speculation.draft_tokens

    def learn(self: Any, texts: list[Siblings]) -> None:
        """Draft from these responses."""
        runner = self.model_runner
        drafter = runner.speculator if self.vllm_config.speculative_config is None else runner.drafter
        for prompt, responses in texts:
            for response in responses:
                drafter.learn(prompt, response)

    def drafting_counts(self: Any) -> tuple[int, int]:
        """Drafted tokens that were checked, and tokens of these that were kept, since the start; of drafts
        that are made on the CPU."""
        counts: tuple[int, int] = self.model_runner.drafter.counts()
        return counts


def _matrices(layer: Any) -> tuple[Any, Any]:
    return layer.lora_a, layer.lora_b


def repair_rejection_sampler() -> None:
    """Let vLLM's rejection sampler know the requests' temperature and top-k on CPUs.

    There it repeats them for each drafted token by a kernel for 64-bit integers that fills a copy: what it
    goes on with is memory that nobody wrote, and drafts are checked against wrong probabilities.
    """
    from vllm.v1.sample import rejection_sampler

    rejection_sampler.expand_batch_to_tokens = _for_each_draft


def _for_each_draft(
    values: torch.Tensor,
    ends: torch.Tensor,
    drafts: int,
    replace_from: float = 0,
    replace_to: float = 0,
) -> torch.Tensor:
    """The value of each drafted token's request, shape (drafts,), `replace_to` where it is `replace_from`.
    `values` has one for each request, `ends` the number of tokens drafted up to each: both (requests,)."""
    counts = torch.diff(ends, prepend=ends.new_zeros(1))
    chosen = values.masked_fill(values == replace_from, replace_to)
    return chosen.repeat_interleave(counts, output_size=drafts)


def _tensors(folder: Path) -> Iterator[tuple[str, torch.Tensor]]:
    for file in sorted(folder.glob("*.safetensors")):
        with safe_open(file, framework="pt") as opened:
            for name in opened.keys():  # noqa: SIM118
                yield name, opened.get_tensor(name)


def _forget_expert_kernels(model: torch.nn.Module) -> None:
    """On CPUs the experts of a mixture of experts are multiplied from packed weights, and vLLM packs them
    only where it makes the kernel for them. A reload that finds a kernel fills the packed memory with weights
    that are not packed, without an error; one that finds none makes it, and packs."""
    for module in model.modules():
        method: Any = getattr(module, "quant_method", None)
        if getattr(method, "moe_kernel", None) is not None:
            method.moe_kernel = None


def _repack_embeddings(model: torch.nn.Module) -> None:
    """On CPUs an output head multiplies with a packed copy of its weight. When the head is tied to the input
    embedding, the reload fills the shared weight and leaves that copy as it was: it must be packed anew."""
    from vllm.model_executor.layers.vocab_parallel_embedding import VocabParallelEmbedding
    from vllm.platforms import current_platform

    if not current_platform.is_cpu():
        return
    for module in model.modules():
        if isinstance(module, VocabParallelEmbedding):
            module.quant_method.process_weights_after_loading(module)


def _end_with(host: int) -> None:
    """Kill this process when process `host` ends.

    A thread that waits on the host's pidfd, and not PR_SET_PDEATHSIG: that fires when the thread that
    started this process ends, and it is the parent alone that it watches.
    """
    try:
        descriptor = os.pidfd_open(host)
    except ProcessLookupError:
        os.kill(os.getpid(), signal.SIGKILL)
        return

    def wait() -> None:
        import select

        # Not `select`, which takes no descriptor above 1,023.
        poll = select.poll()
        poll.register(descriptor, select.POLLIN)
        poll.poll()
        os.kill(os.getpid(), signal.SIGKILL)

    threading.Thread(target=wait, name="rljob-end-with-host", daemon=True).start()


def _end_soon() -> None:
    """Let garbage collections at this process's end pass over what was there when the engine was up.

    vLLM freezes that once it is up, and thaws it when it ends, for engines within a process that goes on. It
    is then looked through four times, which takes 3 s of a core; so long an engine's host would wait, and
    kill it. What the process holds is freed with it.
    """
    gc.unfreeze = lambda: None


# The host itself may import this module too: `vllm_shape` does.
if (_host := os.environ.get(HOST_VARIABLE)) and int(_host) != os.getpid():
    _end_with(int(_host))
    _end_soon()
    count_second_set()
    time_start()
    keep_experts_plain()
    keep_log_probs_as_asked()
    warm_up_as_sampled()
