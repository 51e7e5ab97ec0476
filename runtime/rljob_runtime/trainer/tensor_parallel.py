"""Layers split over the ranks of a tensor group (arXiv:1909.08053), as the model's own plan says.

transformers' configurations name the linear layers to split: by columns those whose outputs each rank has a
part of (queries, keys, values, gate, up), by rows those that sum over such parts (output, down). Norms of
single heads see a part of the heads. Of embeddings and of the output head each rank has a part of the
vocabulary (`vocabulary`), where it can be divided evenly, and of stacked experts a part by number
(`tensor_experts`). All else (other norms, routers) every rank of the group has whole, and computes alike.

Guarantees: parameters become DTensors over the tensor group, under their names; gradients are those of the
whole model, on every rank of the group; a model without such a plan, or with parameters whose part in it is
not known, is refused. Two sums over the group for each layer and pass, forward and backward: one behind
attention, one behind the feed-forward layer; beside them one of embeddings forward, and one of hidden states
behind the head backward.
"""

from collections.abc import Callable
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
from rljob_runtime.manifest.tensor_plan import COLUMNS, OF_A_HEAD, kinds_of, parent, stacked_experts
from rljob_runtime.parallel.rank_layout import unfit
from rljob_runtime.trainer.tensor_experts import OWN, have_part, of_all_ranks
from rljob_runtime.trainer.vocabulary import embed


def split(model: Any, mesh: DeviceMesh) -> None:
    """Split a Hugging Face causal language model, which is on the meta device, over the ranks of the
    one-dimensional `mesh`. Raises `UnsupportedModel`."""
    why = unfit(mesh.size(), model.config.to_dict())
    if why is not None:
        raise UnsupportedModel(why)
    decoder = model.get_decoder()
    kinds = kinds_of(model, mesh.size())
    styles: dict[str, ParallelStyle] = {}
    for name, kind in kinds.items():
        if kind != OF_A_HEAD:
            styles[name] = ColwiseParallel() if kind == COLUMNS else RowwiseParallel()
    # No rank sends anything: each takes its part by itself.
    parallelize_module(decoder, mesh, styles, src_data_rank=None)
    for name in {parent(name) for name, kind in kinds.items() if kind == COLUMNS}:
        # Once for all layers split by columns that have one input, so that its gradient is summed once.
        decoder.get_submodule(name).register_forward_pre_hook(partial(_mark, mesh), with_kwargs=True)
    of_heads = {decoder.get_submodule(name) for name, kind in kinds.items() if kind == OF_A_HEAD}
    made: dict[nn.Parameter, nn.Parameter] = {}
    of_words = _divided(model, mesh.size())
    for module in of_words:
        _keep_part(module, mesh, made)
    for experts in stacked_experts(model).values():
        names = _distribute(experts, mesh, OWN, made)
        have_part(experts, mesh)
        own = partial(_with_local, experts, names, OWN, experts.forward)
        experts.forward = partial(of_all_ranks, experts, mesh, own)
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
