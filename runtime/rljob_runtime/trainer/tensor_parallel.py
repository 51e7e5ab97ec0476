"""Layers split over the ranks of a tensor group (arXiv:1909.08053), as the model's own plan says.

transformers' configurations name the linear layers to split: by columns those whose outputs each rank has a
part of (queries, keys, values, gate, up), by rows those that sum over such parts (output, down). Norms of
single heads see a part of the heads. Of embeddings and of the output head each rank has a part of the
vocabulary (`vocabulary`), where it can be divided evenly, and of stacked experts a part by number
(`tensor_experts`); an adapter is split as its layer is (`tensor_adapter`). All else (other norms, routers)
every rank of the group has whole, and computes alike.

Guarantees: parameters become DTensors over the tensor group, under their names; gradients are those of the
whole model, on every rank of the group; a model without such a plan, or with parameters whose part in it is
not known, is refused. Two sums over the group for each layer and pass, forward and backward: one behind
attention, one behind the feed-forward layer; beside them one of embeddings forward, and one of hidden states
behind the head backward.
"""

from functools import partial
from types import MethodType
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard
from torch.nn.functional import linear

from rljob_runtime.job_errors import UnsupportedModel
from rljob_runtime.manifest.tensor_plan import (
    COLUMNS,
    OF_A_HEAD,
    is_adapted,
    kinds_of,
    parent,
    stacked_experts,
)
from rljob_runtime.parallel.rank_layout import unfit
from rljob_runtime.trainer.tensor_adapter import split_adapter
from rljob_runtime.trainer.tensor_experts import OWN, have_part, of_all_ranks
from rljob_runtime.trainer.tensor_parameters import Made, Own, distribute, with_own
from rljob_runtime.trainer.tensor_sums import added, entered
from rljob_runtime.trainer.vocabulary import embed


def split(model: Any, mesh: DeviceMesh) -> None:
    """Split a Hugging Face causal language model, which is on the meta device, over the ranks of the
    one-dimensional `mesh`. Raises `UnsupportedModel`."""
    why = unfit(mesh.size(), model.config.get_text_config().to_dict())
    if why is not None:
        raise UnsupportedModel(why)
    decoder = model.get_decoder()
    kinds = kinds_of(model, mesh.size())
    made: Made = {}
    of_words = _divided(model, mesh.size())
    for module in of_words:
        _keep_part(module, mesh, made)
    summed: set[nn.Module] = set()
    for name, kind in kinds.items():
        module = decoder.get_submodule(name)
        if kind == OF_A_HEAD:
            summed.add(module)
            continue
        _split_layer(module, mesh, kind == COLUMNS, made)
        if is_adapted(module):
            summed.add(split_adapter(module, mesh, kind != COLUMNS, made))
    for name in {parent(name) for name, kind in kinds.items() if kind == COLUMNS}:
        # Once for all layers split by columns that have one input, so that its gradient is summed once.
        module = decoder.get_submodule(name)
        module.tensor_group = mesh.get_group()
        module.register_forward_pre_hook(_enter, with_kwargs=True)
    for experts in stacked_experts(model).values():
        distribute(experts, mesh, OWN, made)
        have_part(experts, mesh)
        experts.forward = partial(of_all_ranks, experts, mesh, experts.forward)
    _compute_with_own(model, mesh, set(of_words), summed, made)


def _compute_with_own(
    model: Any, mesh: DeviceMesh, done: set[nn.Module], summed: set[nn.Module], made: Made
) -> None:
    """Let each module but those of `done` compute with the rank's own numbers of its parameters. `summed`:
    modules of whose whole parameters' gradients a rank has a part."""
    blocks = set(model._no_split_modules or ())
    for module in model.modules():
        if module in done:
            continue
        # Those of a block together, outside of what may be compiled.
        together = type(module).__name__ in blocks or is_adapted(module)
        within = list(module.modules()) if together else [module]
        done.update(within)
        own = [each for part in within for each in _kept(part, mesh, part in summed, made)]
        if own:
            module.forward = partial(with_own, own, module.forward)


def _split_layer(module: Any, mesh: DeviceMesh, by_columns: bool, made: Made) -> None:
    """Let each rank have its part of a linear layer; of one with an adapter, of the layer in it."""
    layer = module.base_layer if is_adapted(module) else module
    if by_columns:
        distribute(layer, mesh, Shard(0), made)
        return
    distribute(layer, mesh, Shard(1), made, only="weight")
    # Bound to it, and not a function of its own: layers that are alike share what is compiled.
    layer.tensor_group = mesh.get_group()
    layer.forward = MethodType(_sum_of_rows, layer)


def _sum_of_rows(layer: Any, own: Tensor) -> Tensor:
    """What a layer gives on all ranks, by this rank's part of its inputs."""
    found = added(linear(own, layer.weight), layer.tensor_group)
    return found if layer.bias is None else found + layer.bias


def _kept(module: nn.Module, mesh: DeviceMesh, summed: bool, made: Made) -> list[Own]:
    """The module's own parameters, of which every rank has those that are not split. `summed`: whether of
    their gradients each has a part."""
    distribute(module, mesh, Replicate(), made)
    found = []
    for name, each in module.named_parameters(recurse=False):
        assert isinstance(each, DTensor)
        (placement,) = each.placements
        found.append(Own(module, name, Partial() if summed and placement.is_replicate() else placement))
    return found


def _enter(
    module: Any, arguments: tuple[Any, ...], named: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Sum the gradients of the input of attention or of a feed-forward layer, which all ranks have alike."""
    if arguments:
        return (*entered(arguments[:1], module.tensor_group), *arguments[1:]), named
    (hidden,) = entered((named["hidden_states"],), module.tensor_group)
    return arguments, named | {"hidden_states": hidden}


def _divided(model: Any, ranks: int) -> tuple[nn.Module, ...]:
    """Embeddings and output head, where each rank can have an equal part of the vocabulary of both."""
    words, head = model.get_input_embeddings(), model.get_output_embeddings()
    plain = isinstance(words, nn.Embedding) and type(head) is nn.Linear
    if not plain or words.max_norm is not None or words.weight.shape[0] % ranks:
        return ()
    return () if head.weight.shape[0] % ranks else (words, head)


def _keep_part(module: nn.Module, mesh: DeviceMesh, made: Made) -> None:
    """Let every rank have its part of the vocabulary of embeddings or of a head."""
    distribute(module, mesh, Shard(0), made)
    if isinstance(module, nn.Embedding):
        words: Any = module
        words.forward = partial(embed, module, module.forward)


def on_meta(model: nn.Module) -> None:
    """Put the model's parameters on the meta device; tied ones stay one, buffers stay where they are."""
    made: Made = {}
    for module in model.modules():
        for name, parameter in list(module.named_parameters(recurse=False)):
            if parameter not in made:
                empty = torch.empty_like(parameter, device="meta")
                made[parameter] = nn.Parameter(empty, requires_grad=parameter.requires_grad)
            module.register_parameter(name, made[parameter])
