"""Layers split over the ranks of a tensor group (arXiv:1909.08053), as the model's own plan says.

transformers' configurations name the linear layers to split: by columns those whose outputs each rank has a
part of (queries, keys, values, gate, up), by rows those that sum over such parts (output, down). Norms of
single heads see a part of the heads. Of embeddings and of the output head each rank has a part of the
vocabulary (`vocabulary`), where it can be divided evenly. All else (other norms) every rank of the group has
whole, and computes alike.

Guarantees: parameters become DTensors over the tensor group, under their names; gradients are those of the
whole model, on every rank of the group; a model without such a plan, or with parameters whose part in it is
not known, is refused. Two sums over the group for each layer and pass, forward and backward: one behind
attention, one behind the feed-forward layer; beside them one of embeddings forward, and one of hidden states
behind the head backward.
"""

import re
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Placement, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    RowwiseParallel,
    parallelize_module,
)

from rljob_runtime.job_errors import UnsupportedModel
from rljob_runtime.parallel.rank_layout import unfit
from rljob_runtime.trainer.vocabulary import embed

_COLUMNS, _ROWS, _OF_A_HEAD = "colwise", "rowwise", "replicated_with_grad_allreduce"
"""transformers' names for what is done with a layer."""
_NUMBER = re.compile(r"(?<=\.)\d+(?=\.)")


def split(model: Any, mesh: DeviceMesh) -> None:
    """Split a Hugging Face causal language model, which is on the meta device, over the ranks of the
    one-dimensional `mesh`. Raises `UnsupportedModel`."""
    why = unfit(mesh.size(), model.config.to_dict())
    if why is not None:
        raise UnsupportedModel(why)
    decoder = model.get_decoder()
    kinds = _kinds(model, decoder, mesh.size())
    styles: dict[str, ParallelStyle] = {}
    for name, kind in kinds.items():
        if kind != _OF_A_HEAD:
            styles[name] = ColwiseParallel() if kind == _COLUMNS else RowwiseParallel()
    # No rank sends anything: each takes its part by itself.
    parallelize_module(decoder, mesh, styles, src_data_rank=None)
    for name in {_parent(name) for name, kind in kinds.items() if kind == _COLUMNS}:
        # Once for all layers split by columns that have one input, so that its gradient is summed once.
        decoder.get_submodule(name).register_forward_pre_hook(partial(_mark, mesh), with_kwargs=True)
    of_heads = {decoder.get_submodule(name) for name, kind in kinds.items() if kind == _OF_A_HEAD}
    made: dict[nn.Parameter, nn.Parameter] = {}
    of_words = _divided(model, mesh.size())
    for module in of_words:
        _keep_part(module, mesh, made)
    for module in model.modules():
        if module not in of_words:
            _keep_whole(module, mesh, Partial() if module in of_heads else Replicate(), made)


def whole_on_each(parameter: Tensor) -> bool:
    """Whether every rank has all of a parameter's numbers now."""
    return not isinstance(parameter, DTensor) or all(each.is_replicate() for each in parameter.placements)


def local(parameter: Tensor, gradient: Placement | None = None) -> Tensor:
    """This rank's numbers of a parameter. `gradient`: what a rank computes of the gradient from them, all of
    it by default; with `Partial` that has to be summed over the tensor group."""
    if not isinstance(parameter, DTensor):
        return parameter
    found: Tensor = parameter.to_local(grad_placements=[gradient or Replicate()])
    return found


def _kinds(model: Any, decoder: Any, ranks: int) -> dict[str, str]:
    """What the plan says of the decoder's modules, by name; of those that it names. Raises
    `UnsupportedModel`, also where a layer cannot be split evenly over `ranks`."""
    plan: Mapping[str, str] = getattr(model.config.get_text_config(), "base_model_tp_plan", None) or {}
    # Embeddings are split by themselves, whatever the plan says of them.
    modules = {
        name: module for name, module in decoder.named_modules() if not isinstance(module, nn.Embedding)
    }
    kinds = {name: plan[pattern] for name in modules if (pattern := _NUMBER.sub("*", name)) in plan}
    unknown = {kind for kind in kinds.values() if kind not in (_COLUMNS, _ROWS, _OF_A_HEAD)}
    if not kinds or unknown:
        what = f"has {', '.join(sorted(unknown))} in its plan" if unknown else "has no plan"
        raise _refused(model, f"{what} for splitting its layers (base_model_tp_plan of transformers)")
    within = {_parent(name) for name in kinds}
    for name, module in modules.items():
        inside = any(name == each or name.startswith(f"{each}.") for each in within)
        why = _fault(name, module, kinds.get(name), inside, ranks)
        if why is not None:
            raise _refused(model, why)
    return kinds


def _fault(name: str, module: nn.Module, kind: str | None, inside: bool, ranks: int) -> str | None:
    """Why a module of this kind, inside of what is split or not, cannot be in a tensor group; None where it
    can."""
    if kind == _OF_A_HEAD:
        return None
    if kind is None:
        if not inside or not any(True for _ in module.parameters(recurse=False)):
            return None
        # It may see a part of the heads, and its gradient would be of that part.
        return f"has parameters in {name}, of which its plan for splitting says nothing"
    if not isinstance(module, nn.Linear):
        return f"has {name}, which is no linear layer, among those to split"
    width = module.out_features if kind == _COLUMNS else module.in_features
    return f"has {name} with a width of {width}, which {ranks} does not divide" if width % ranks else None


def _refused(model: Any, why: str) -> UnsupportedModel:
    return UnsupportedModel(f"parallel.tensorParallel: {type(model).__name__} {why}: set 1")


def _parent(name: str) -> str:
    return name.rpartition(".")[0]


def _mark(
    mesh: DeviceMesh, module: nn.Module, arguments: tuple[Any, ...], named: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The input of attention or of a feed-forward layer as one that all ranks have alike."""

    def marked(hidden: Tensor) -> DTensor:
        return DTensor.from_local(hidden, mesh, [Replicate()], run_check=False)

    if arguments:
        return (marked(arguments[0]), *arguments[1:]), named
    return arguments, named | {"hidden_states": marked(named["hidden_states"])}


def _divided(model: Any, ranks: int) -> tuple[nn.Module, ...]:
    """Embeddings and output head, where each rank can have an equal part of the vocabulary of both."""
    words, head = model.get_input_embeddings(), model.get_output_embeddings()
    plain = isinstance(words, nn.Embedding) and type(head) is nn.Linear
    if not plain or words.max_norm is not None or words.weight.shape[0] % ranks:
        return ()
    return () if head.weight.shape[0] % ranks else (words, head)


def _keep_part(module: nn.Module, mesh: DeviceMesh, made: dict[nn.Parameter, nn.Parameter]) -> None:
    """Let every rank have its part of the vocabulary of embeddings or of a head."""
    _distribute(module, mesh, Shard(0), made)
    if isinstance(module, nn.Embedding):
        words: Any = module
        words.forward = partial(embed, module, module.forward)


def _distribute(
    module: nn.Module, mesh: DeviceMesh, placement: Placement, made: dict[nn.Parameter, nn.Parameter]
) -> list[str]:
    """Make DTensors of the module's own parameters, as far as they are none; the names of these."""
    names = [name for name, each in module.named_parameters(recurse=False) if not isinstance(each, DTensor)]
    for name in names:
        plain = module._parameters[name]
        assert plain is not None
        if plain not in made:
            spread = distribute_tensor(plain, mesh, [placement], src_data_rank=None)
            made[plain] = nn.Parameter(spread, requires_grad=plain.requires_grad)
        module.register_parameter(name, made[plain])
    return names


def _keep_whole(
    module: nn.Module, mesh: DeviceMesh, gradient: Placement, made: dict[nn.Parameter, nn.Parameter]
) -> None:
    """Let every rank have the module's own parameters, as far as they are not split, and compute with them
    as without a group. `made`: what parameters became, of which tied ones stay one."""
    names = _distribute(module, mesh, Replicate(), made)
    if names:
        module.forward = partial(_with_local, module, names, gradient, module.forward)


def _with_local(
    module: nn.Module,
    names: list[str],
    gradient: Placement,
    forward: Callable[..., Any],
    *arguments: Any,
    **named: Any,
) -> Any:
    """`forward` of the module, computed with plain tensors in the place of its parameters: what operators
    make of DTensors' gradients depends on their sizes."""
    kept = {name: module._parameters[name] for name in names}
    for name, parameter in kept.items():
        assert parameter is not None
        module._parameters[name] = local(parameter, gradient)  # type: ignore[assignment]
    try:
        return forward(*arguments, **named)
    finally:
        module._parameters.update(kept)


def on_meta(model: nn.Module) -> None:
    """Put the model's parameters on the meta device; tied ones stay one, buffers stay where they are."""
    made: dict[nn.Parameter, nn.Parameter] = {}
    for module in model.modules():
        for name, parameter in list(module.named_parameters(recurse=False)):
            if parameter not in made:
                empty = torch.empty_like(parameter, device="meta")
                made[parameter] = nn.Parameter(empty, requires_grad=parameter.requires_grad)
            module.register_parameter(name, made[parameter])
