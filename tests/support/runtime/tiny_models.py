"""Tiny random models on disk, and what their log-probabilities must be."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
import transformers
from numpy.typing import NDArray
from safetensors.torch import load_file, save_file
from transformers.cache_utils import DynamicCache

from rljob_api.rollout import VllmEngine as VllmOptions
from rljob_runtime.engines.protocol import Request, Sampling, WeightRef
from rljob_runtime.engines.torch_sampling import restrict
from rljob_runtime.samples import Generation

Family = Literal["qwen3", "qwen2", "llama", "qwen3_moe", "mixtral", "gemma2", "granite_swa", "gpt_oss"]
VOCABULARY = 64
PLAIN = Sampling()
VLLM_TOLERANCE = 1e-4
"""Log-probabilities of a vLLM engine may differ from a trainer's by this much, in float32."""
_ROUNDING = 2e-6
"""Logits and sums of probabilities of an engine and a trainer may differ by this much, in float32."""
_ROUTER_ROUNDING = 1e-5
"""The same of a router's logits, which are taken from hidden states that differ already."""


def tiny_model(folder: Path, family: Family = "qwen3", tied: bool = False, seed: int = 0) -> Path:
    """A model of two layers and at most 0.7 M parameters; returns `folder`. vLLM can run all of them, the
    torch engine those without experts."""
    shape: dict[str, Any] = {
        "vocab_size": VOCABULARY,
        "hidden_size": 128 if family in ("qwen2", "granite_swa") else 64,
        "intermediate_size": 192,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 512,
        "tie_word_embeddings": tied,
    }
    if family not in ("qwen2", "granite_swa"):
        shape["head_dim"] = 32
    if family in ("gemma2", "granite_swa", "gpt_oss"):
        shape |= {"sliding_window": 16, "layer_types": ["sliding_attention", "full_attention"]}
    if family == "gemma2":
        # So low that they are felt.
        shape |= {"attn_logit_softcapping": 0.5, "final_logit_softcapping": 1.0, "query_pre_attn_scalar": 32}
    if family in ("qwen3_moe", "mixtral", "gpt_oss"):
        # A router that is mostly sure: see `Reference.surely_routed` for where it is not.
        shape |= {"num_experts_per_tok": 2, "initializer_range": 0.1, "num_local_experts": 8}
        shape |= {"num_experts": 8, "moe_intermediate_size": 48, "norm_topk_prob": True}
    config = transformers.AutoConfig.for_model(family, **shape)
    torch.manual_seed(seed)
    transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32).save_pretrained(folder)
    return folder


def hdp_model(folder: Path, family: str) -> Path:
    """A model of a family by its name, with "window N" where its layers see N tokens, every second one for
    gemma3, gemma2 and gpt_oss; "one key head" is a llama with that. Returns `folder`."""
    name, _, window = family.partition(", window ")
    shape: dict[str, Any] = {
        "vocab_size": VOCABULARY, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 1 if name == "one key head" else 2, "head_dim": 16,
        "max_position_embeddings": 512, "tie_word_embeddings": False,
    }  # fmt: skip
    if window:
        shape["sliding_window"] = int(window)
    if name == "gemma3":
        name = "gemma3_text"
        shape["layer_types"] = ["sliding_attention", "full_attention"]
    if name == "gemma2":
        # So low that scores and logits of such small weights feel them.
        shape |= {"attn_logit_softcapping": 0.02, "final_logit_softcapping": 0.1}
        shape |= {"query_pre_attn_scalar": 16, "layer_types": ["sliding_attention", "full_attention"]}
    if name == "gpt_oss":
        shape |= {"num_local_experts": 4, "num_experts_per_tok": 2}
        shape["layer_types"] = ["sliding_attention", "full_attention"]
    if name == "qwen2":
        del shape["head_dim"]
    config = transformers.AutoConfig.for_model({"one key head": "llama"}.get(name, name), **shape)
    torch.manual_seed(0)
    transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32).save_pretrained(folder)
    return folder


def sharp_model(folder: Path, sharpness: float = 100.0) -> Path:
    """A tiny model that is sure of its next token, so that its responses go in circles; returns `folder`."""
    return sharpened(tiny_model(folder), sharpness)


def sharpened(folder: Path, by: float) -> Path:
    """Make the model of a folder so many times surer of its next token; returns `folder`."""
    file = folder / "model.safetensors"
    weights = load_file(file)
    weights["lm_head.weight"] *= by
    save_file(weights, file, metadata={"format": "pt"})
    return folder


def perturbed(base: Path, folder: Path, seed: int, scale: float = 0.1) -> Path:
    """Weights of `base` plus noise, published in `folder` as a trainer's store would; returns `folder`."""
    generator = torch.Generator().manual_seed(seed)
    weights = load_file(base / "model.safetensors")
    noisy = {
        name: value + scale * torch.randn(value.shape, generator=generator)
        for name, value in sorted(weights.items())
    }
    published(folder)
    save_file(noisy, folder / "model.safetensors")
    return folder


def published(folder: Path) -> Path:
    """Make `folder` one that engines take weights from."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / ".lock").touch()
    return folder


def weights_at(version: int, folder: Path) -> WeightRef:
    return WeightRef(version, "shm", str(folder))


def request(name: str, seed: int = 0, length: int = 10, max_tokens: int = 50, exact: bool = False) -> Request:
    """A request with a random prompt of `length` tokens."""
    tokens = np.random.default_rng([seed, length]).integers(0, VOCABULARY, length).astype(np.int32)
    return Request(name, tokens, max_tokens, seed, exact=exact)


def vllm_device() -> dict[str, Any]:
    """Arguments that make a vLLM engine run a tiny model on what this machine has."""
    if not torch.cuda.is_available():
        # Filling the default's GiB with zeros takes as long as loading the model.
        return {"accelerator": "cpu", "options": VllmOptions(kv_cache_gi_b=1 / 16)}
    return {"accelerator": "nvidia", "options": VllmOptions(gpu_memory_utilization=0.1, enforce_eager=True)}


class Reference:
    """A model in plain Hugging Face form."""

    def __init__(self, base: Path) -> None:
        # With torch's attention transformers leaves a cap of scores out.
        model = transformers.AutoModelForCausalLM.from_pretrained(base, attn_implementation="eager")
        self._model = model.eval()

    def use(self, folder: Path) -> "Reference":
        """Take the weights in `folder`."""
        weights, model = load_file(folder / "model.safetensors"), self._model
        if weights.keys() <= model.state_dict().keys():
            # Not strict: a file of a model with tied embeddings has no `lm_head`.
            model.load_state_dict(weights, strict=False)
            model.tie_weights()
        else:
            # Experts lie one by one in the file and stacked in the model.
            self._model = type(model).from_pretrained(None, config=model.config, state_dict=weights).eval()
        return self

    def log_probs(self, asked: Request, got: Generation, sampling: Sampling = PLAIN) -> NDArray[np.float32]:
        """What each token's log-probability must be, shape (response length,)."""
        return self.scores(asked, got, sampling)[0]

    @torch.inference_mode()
    def scores(
        self, asked: Request, got: Generation, sampling: Sampling
    ) -> tuple[NDArray[np.float32], NDArray[np.bool_]]:
        """What each token's log-probability must be, and whether it must: not where rounding decides which
        tokens top-k and top-p leave out. Each of shape (response length,)."""
        prompt = len(asked.tokens)
        tokens = torch.from_numpy(np.concatenate([asked.tokens, got.tokens]).astype(np.int64))
        # The logits at a position are of the token after it.
        logits = self._model(tokens[None]).logits[0, prompt - 1 : -1]
        return _scored(logits, tokens[prompt:], sampling)

    @torch.inference_mode()
    def scores_upon_kept_kv(
        self, folders: dict[int, Path], asked: Request, got: Generation, sampling: Sampling
    ) -> tuple[NDArray[np.float32], NDArray[np.bool_]]:
        """The same of an engine that keeps its KV cache when weights are updated; `folders` has the weights
        of each version. Leaves the model with those of the last one."""
        prompt, done, logits = len(asked.tokens), 0, []
        tokens = torch.from_numpy(np.concatenate([asked.tokens, got.tokens]).astype(np.int64))
        cache = DynamicCache()
        for span in got.spans:
            # The token that was drawn last is in no cache: the new weights compute it.
            end = prompt + span.end - 1
            part = self.use(folders[span.version])._model(tokens[None, done:end], past_key_values=cache)
            logits.append(part.logits[0, max(0, prompt - 1 - done) :])
            done = end
        return _scored(torch.cat(logits), tokens[prompt:], sampling)

    def surely_routed(self, asked: Request, got: Generation) -> bool:
        """Whether rounding decides nowhere which experts a token has. Where it does, engine and trainer may
        choose others, and every later token sees what came of it."""
        return self.surely_routed_tokens(asked, got) == len(got.tokens)

    @torch.inference_mode()
    def surely_routed_tokens(self, asked: Request, got: Generation) -> int:
        """The first tokens of a response before which rounding decides nowhere between experts; all of them
        for a model without experts."""
        chosen = getattr(self._model.config, "num_experts_per_tok", None)
        if chosen is None:
            return len(got.tokens)
        # The last token is drawn before it goes through the model.
        tokens = torch.from_numpy(np.concatenate([asked.tokens, got.tokens]).astype(np.int64))[:-1]
        undecided = torch.zeros(len(tokens), dtype=torch.bool)
        for logits in self._model(tokens[None], output_router_logits=True).router_logits:
            ordered = logits.sort(dim=-1, descending=True).values
            undecided |= ordered[:, chosen - 1] - ordered[:, chosen] <= _ROUTER_ROUNDING
        first = int(undecided.int().argmax()) if undecided.any() else len(tokens)
        # The logits at a position are of the token after it.
        return max(0, first + 1 - len(asked.tokens)) if first < len(tokens) else len(got.tokens)


def _scored(
    logits: torch.Tensor, tokens: torch.Tensor, sampling: Sampling
) -> tuple[NDArray[np.float32], NDArray[np.bool_]]:
    """Log-probabilities of `tokens`, of shape (length,), by the `logits` before each of them, and where they
    are certain."""
    logits = logits.float() / sampling.temperature
    chosen = restrict(logits, sampling).log_softmax(-1).gather(1, tokens[:, None])
    return chosen[:, 0].numpy(), (_margin(logits, sampling) > _ROUNDING).numpy()


def _margin(logits: torch.Tensor, sampling: Sampling) -> torch.Tensor:
    """How far top-k and top-p are from leaving out other tokens than they do; shape (rows,)."""
    ordered = logits.sort(dim=-1, descending=True).values
    margin = torch.full(ordered.shape[:1], torch.inf)
    if 0 < sampling.top_k < logits.shape[-1]:
        margin = ordered[:, sampling.top_k - 1] - ordered[:, sampling.top_k]
        ordered = ordered[:, : sampling.top_k]
    if sampling.top_p < 1.0:
        sums = ordered.softmax(dim=-1).cumsum(dim=-1)
        margin = margin.minimum((sums - sampling.top_p).abs().amin(dim=-1))
    return margin


def check_log_probs(
    base: Path,
    folders: dict[int, Path],
    pairs: Iterable[tuple[Request, Generation]],
    sampling: Sampling = PLAIN,
    tolerance: float = VLLM_TOLERANCE,
) -> None:
    """Each token's log-probability is that of a model with the weights of the token's version.

    `folders` has the weights of each version; `base` the model they belong to. A few tokens in ten thousand
    are not looked at, see `Reference.scores`.
    """
    pairs = list(pairs)
    assert {span.version for _, got in pairs for span in got.spans} <= folders.keys()
    reference, undecided = Reference(base), 0
    for version, folder in folders.items():
        reference.use(folder)
        for asked, got in pairs:
            for span in (span for span in got.spans if span.version == version):
                part = slice(span.start, span.end)
                expected, certain = (of_all[part] for of_all in reference.scores(asked, got, sampling))
                undecided += len(certain) - int(certain.sum())
                np.testing.assert_allclose(
                    got.log_probs[part][certain], expected[certain], atol=tolerance, rtol=0
                )
    assert undecided <= max(2, sum(len(got.tokens) for _, got in pairs) / 1000)


def check_kept_kv(
    base: Path, folders: dict[int, Path], pairs: Iterable[tuple[Request, Generation]], sampling: Sampling
) -> float:
    """Each token's log-probability is that of a model with the weights of the token's version, upon the KV
    that the weights of earlier tokens made. Returns the largest difference from what `check_log_probs` asks
    for, of tokens after the first version."""
    reference, apart = Reference(base), 0.0
    for asked, got in pairs:
        expected, certain = reference.scores_upon_kept_kv(folders, asked, got, sampling)
        np.testing.assert_allclose(got.log_probs[certain], expected[certain], atol=VLLM_TOLERANCE, rtol=0)
        for span in got.spans[1:]:
            part = slice(span.start, span.end)
            anew = reference.use(folders[span.version]).log_probs(asked, got, sampling)
            apart = max(apart, float(np.abs(got.log_probs - anew)[part][certain[part]].max(initial=0.0)))
    return apart
