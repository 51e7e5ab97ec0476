"""Models: writing a random one, and loading one for training.

Guarantees: the same job gives the same random weights, bit for bit; a model that the trainer cannot score
exactly (other attention, other logits, weights under other names than in its folder) is refused when it is
loaded, with the reason; nothing is left to chance, neither dropout nor a router's noise.
"""

from pathlib import Path
from typing import Any

import torch

from rljob_api import RLJob
from rljob_api.model import ActivationCheckpointing, Experts, RandomModel
from rljob_runtime.data.errors import one_line
from rljob_runtime.job_errors import UnsupportedModel
from rljob_runtime.trainer.activations import checkpoint_activations
from rljob_runtime.trainer.attention import ATTENTION, register_attention
from rljob_runtime.trainer.policy import Policy
from rljob_runtime.trainer.router_corrections import keep_corrections, read_corrections
from rljob_runtime.trainer.sampling_distribution import Distribution
from rljob_runtime.trainer.trained_names import trained_names
from rljob_runtime.weights.folder_names import check_names
from rljob_runtime.weights.model_files import loading, without_progress_bars

_EXPERTS: dict[Experts, str] = {"grouped": "grouped_mm", "eager": "eager"}
"""By `training.model.experts`, transformers' name of the implementation."""
_DROPOUT = "drop"
"""What the names of those fields of config.json have in them that are rates of dropout."""


def save_initial_model(
    job: RLJob, tokenizer_vocabulary: int, pad_id: int | None, bos_id: int | None, eos_id: int, folder: Path
) -> None:
    """Write the job's random model to `folder` (config.json, model.safetensors), in float32."""
    from transformers import AutoConfig, AutoModelForCausalLM

    shape = job.spec.training.model.random
    if shape is None:
        raise ValueError("the job's model is a folder, not a random one")
    config = AutoConfig.for_model(
        shape.architecture,
        vocab_size=shape.tokens(tokenizer_vocabulary),
        hidden_size=shape.hidden_size,
        intermediate_size=shape.intermediate_size,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.attention_heads,
        num_key_value_heads=shape.key_value_heads,
        head_dim=shape.head_dim,
        max_position_embeddings=shape.max_position_embeddings,
        tie_word_embeddings=shape.tie_word_embeddings,
        pad_token_id=pad_id,
        bos_token_id=bos_id,
        eos_token_id=eos_id,
        **_experts(shape),
    )
    # The process keeps its own random state. The weights are made on the CPU, so no device has a part in it.
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(job.spec.training.seed)
        model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    with without_progress_bars():
        model.save_pretrained(folder)


def _experts(shape: RandomModel) -> dict[str, Any]:
    """What config.json says of a random model's experts."""
    if shape.experts is None:
        return {}
    return {
        "num_experts": shape.experts.count,
        "num_experts_per_tok": shape.experts.per_token,
        "moe_intermediate_size": shape.experts.intermediate_size,
        "norm_topk_prob": True,
    }


def load_policy(
    folder: Path,
    distribution: Distribution,
    dtype: torch.dtype,
    recomputed: ActivationCheckpointing = "none",
    experts: Experts = "grouped",
    offload_activations: bool = False,
    weights: bool = True,
) -> Policy:
    """The model in a Hugging Face folder, on the CPU, with weights in `dtype`; the rest as the fields of
    `training.model` say: what is computed again in the backward pass, how the experts of a mixture of experts
    are multiplied, and whether layers' inputs wait in main memory. Without `weights`, parameters are on the
    meta device: the rank gets them from another one. Raises `UnsupportedModel`."""
    from transformers import AutoConfig, AutoModelForCausalLM

    with loading(folder):
        config = AutoConfig.from_pretrained(folder, local_files_only=True)
    trained = trained_names(folder, config)
    _without_dropout(config)
    register_attention()
    options = {"dtype": dtype, "attn_implementation": ATTENTION}
    with without_progress_bars(), loading(folder):
        if weights:
            model = AutoModelForCausalLM.from_pretrained(
                folder, config=config, local_files_only=True, **options
            )
        else:
            model = _without_weights(config, options)
    if weights:
        check_names(folder, model)
    _train_decoder(model, trained)
    keep_corrections(model)
    if weights:
        read_corrections(folder, model)
    # Models without experts refuse to be told how to multiply them.
    if model._can_set_experts_implementation():
        model.set_experts_implementation(_EXPERTS[experts])
    try:
        checkpoint_activations(model, recomputed, offload_activations)
    except ValueError as error:
        raise UnsupportedModel(
            f"{folder}: {one_line(error)}: set model.activationCheckpointing: none"
        ) from error
    _as_engines_compute(model)
    return Policy(model, distribution)


def _without_weights(config: Any, options: dict[str, Any]) -> Any:
    """The model with parameters on the meta device, and buffers on the CPU: they follow from the config."""
    from accelerate import init_empty_weights
    from transformers import AutoModelForCausalLM

    with init_empty_weights(include_buffers=False):
        model = AutoModelForCausalLM.from_config(config, **options)
    # On the meta device every tensor became one of its own.
    model.tie_weights()
    return model


def _train_decoder(model: Any, trained: frozenset[str]) -> None:
    """Leave out of what is trained the parts that responses have no gradients of: what a model has for
    images, and what its architecture does not train, such as the corrections of a router. `trained`: what it
    does."""
    taking_part = {
        parameter
        for part in (model.get_decoder(), model.get_output_embeddings())
        for parameter in part.parameters()
    }
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(name in trained and parameter in taking_part)


def _without_dropout(config: Any) -> None:
    """Set all rates of dropout to 0: some models drop by a function, without a module that `Policy` could
    change."""
    for part in (config, config.get_text_config()):
        for name, value in part.to_dict().items():
            if isinstance(value, float) and _DROPOUT in name:
                setattr(part, name, 0.0)


def _as_engines_compute(model: Any) -> None:
    """Put the modules into the mode in which engines have them, such as routers that add noise in training;
    but those that are computed again, which transformers does in training alone."""
    model.eval()
    for module in model.modules():
        if getattr(module, "gradient_checkpointing", False):
            module.training = True
