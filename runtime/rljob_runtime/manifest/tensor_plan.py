"""Whether the ranks of a tensor group can split a model's layers, by the model's own plan in transformers.

Guarantees: a model without such a plan, or with parameters whose part in it is not known, is refused; no
weights are read or made.
"""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from torch import nn

from rljob_runtime.job_errors import UnsupportedModel
from rljob_runtime.parallel.rank_layout import experts_of
from rljob_runtime.weights.model_files import loading

COLUMNS, _ROWS, OF_A_HEAD = "colwise", "rowwise", "replicated_with_grad_allreduce"
"""transformers' names for what is done with a layer."""
_STACKED = {"gate_up_proj", "down_proj"}
"""The tensors of stacked experts, each with an expert's at each place of its first dimension."""
_SPARSITY = "activation_sparsity_pattern"
"""Of each layer how many of its activations are left out: by the mean and deviation of all of them, of which
a rank has a part."""
_NUMBER = re.compile(r"(?<=\.)\d+(?=\.)")
_SHARED = re.compile(r"\.shared_experts?(?=\.)")
"""What the names of a shared expert's layers have more than those of a dense feed-forward layer."""


def check_plan(folder: Path, ranks: int) -> None:
    """Raise `UnsupportedModel` where the model of a folder cannot be split over so many ranks."""
    import transformers

    from rljob_runtime.manifest.meta_model import on_meta

    with loading(folder):
        model = on_meta(transformers.AutoConfig.from_pretrained(folder, local_files_only=True))
    kinds_of(model, ranks)


def kinds_of(model: Any, ranks: int) -> dict[str, str]:
    """What the plan says of the modules of a Hugging Face causal language model's decoder, by name; of those
    that it names. Raises `UnsupportedModel`, also where a layer cannot be split evenly over `ranks`."""
    decoder = model.get_decoder()
    plan: Mapping[str, str] = getattr(model.config.get_text_config(), "base_model_tp_plan", None) or {}
    experts = stacked_experts(model)
    # Embeddings and experts are split by themselves, whatever the plan says of them.
    modules = {
        name: module
        for name, module in _without_adapters(decoder)
        if not isinstance(module, nn.Embedding) and name not in experts
    }
    kinds = {
        name: kind
        for name, module in modules.items()
        if (kind := _kind(plan, _NUMBER.sub("*", name), module, ranks)) is not None
    }
    unknown = {kind for kind in kinds.values() if kind not in (COLUMNS, _ROWS, OF_A_HEAD)}
    if not kinds or unknown:
        what = f"has {', '.join(sorted(unknown))} in its plan" if unknown else "has no plan"
        raise _refused(model, f"{what} for splitting its layers (base_model_tp_plan of transformers)")
    if any(getattr(model.config.get_text_config(), _SPARSITY, None) or ()):
        raise _refused(model, f"has {_SPARSITY} in config.json, for which a rank needs a layer's whole width")
    within = {parent(name) for name in kinds}
    _check_experts(model, experts, kinds, within, ranks)
    for name, module in modules.items():
        inside = any(name == each or name.startswith(f"{each}.") for each in within)
        why = _fault(name, module, kinds.get(name), inside, ranks)
        if why is not None:
            raise _refused(model, why)
    return kinds


def _kind(plan: Mapping[str, str], pattern: str, module: nn.Module, ranks: int) -> str | None:
    """What is done with a module whose name fits `pattern`. A shared expert that the plan does not name is
    split as it says of a dense layer in its place, where `ranks` divides its width, and left whole
    otherwise."""
    if pattern in plan:
        return plan[pattern]
    kind = plan.get(_SHARED.sub("", pattern))
    return kind if isinstance(module, nn.Linear) and not _width(module, kind) % ranks else None


def _width(module: nn.Linear, kind: str | None) -> int:
    """What is divided of a linear layer of that kind."""
    return module.out_features if kind == COLUMNS else module.in_features


def is_adapted(module: nn.Module) -> bool:
    """Whether a module is peft's around a linear layer (LoRA), its `base_layer`."""
    return hasattr(module, "lora_A")


def _without_adapters(decoder: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """The decoder's modules by name, as they are where no adapter is around some of them."""
    inside = None
    for name, module in decoder.named_modules():
        # What a module has follows it.
        if inside is not None and name.startswith(inside):
            continue
        inside = f"{name}." if is_adapted(module) else None
        yield name, module if inside is None else module.base_layer


def _check_experts(
    model: Any, experts: Mapping[str, Any], kinds: Mapping[str, str], within: set[str], ranks: int
) -> None:
    """Raise `UnsupportedModel` where ranks cannot have parts of the experts. `experts`, `kinds`: of the
    decoder's modules, by name; `within`: the modules that have those of `kinds`."""
    if not experts:
        if experts_of(model.config.get_text_config().to_dict()):
            raise _refused(model, "has experts that transformers does not stack as it does for most models")
        return
    for name, module in experts.items():
        if any(name.startswith(f"{each}.") for each in within):
            raise _refused(model, f"has {name} in a layer that its plan splits")
        if (count := module.num_experts) % ranks:
            raise _refused(model, f"has {count} experts in {name}, which {ranks} does not divide")
    for name, module in model.get_decoder().named_modules():
        split = any(each.startswith(f"{name}.") for each in kinds)
        # Kernels add gradients of attention in any order: each rank's would be others, the weights that they
        # have whole would drift apart, and with them the experts that ranks choose for a token.
        if type(module).__name__.endswith("Attention") and not split:
            raise _refused(model, f"has experts, and a plan that leaves {name} whole")


def stacked_experts(model: Any) -> dict[str, Any]:
    """The modules with a layer's experts in one tensor for each of their weights, by name in the decoder of a
    Hugging Face causal language model; those whose implementation `model.experts` chooses."""
    return {
        name: module
        for name, module in model.get_decoder().named_modules()
        # As transformers marks them (its `use_experts_implementation`).
        if getattr(module, "has_gate", False) and {own for own, _ in module.named_parameters()} == _STACKED
    }


def _fault(name: str, module: nn.Module, kind: str | None, inside: bool, ranks: int) -> str | None:
    """Why a module of this kind, inside of what is split or not, cannot be in a tensor group; None where it
    can."""
    if kind == OF_A_HEAD:
        return None
    if kind is None:
        if not inside or not any(True for _ in module.parameters(recurse=False)):
            return None
        # It may see a part of the heads, and its gradient would be of that part.
        return f"has parameters in {name}, of which its plan for splitting says nothing"
    if not isinstance(module, nn.Linear):
        return f"has {name}, which is no linear layer, among those to split"
    width = _width(module, kind)
    return f"has {name} with a width of {width}, which {ranks} does not divide" if width % ranks else None


def _refused(model: Any, why: str) -> UnsupportedModel:
    return UnsupportedModel(f"parallel.tensorParallel: {type(model).__name__} {why}: set 1")


def parent(name: str) -> str:
    """The name of the module that has the one of this name."""
    return name.rpartition(".")[0]
