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
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Placement, Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    RowwiseParallel,
    parallelize_module,
)

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
from rljob_runtime.trainer.tensor_parameters import distribute, with_local
from rljob_runtime.trainer.vocabulary import embed


def split(model: Any, mesh: DeviceMesh) -> None:
    """Split a Hugging Face causal language model, which is on the meta device, over the ranks of the
    one-dimensional `mesh`. Raises `UnsupportedModel`."""
    why = unfit(mesh.size(), model.config.to_dict())
    if why is not None:
        raise UnsupportedModel(why)
    decoder = model.get_decoder()
    kinds = kinds_of(model, mesh.size())
    adapted = {name: each for name, each in decoder.named_modules() if name in kinds and is_adapted(each)}
    styles: dict[str, ParallelStyle] = {}
    for name, kind in kinds.items():
        if kind != OF_A_HEAD:
            layer = f"{name}.base_layer" if name in adapted else name
            styles[layer] = ColwiseParallel() if kind == COLUMNS else RowwiseParallel()
    # No rank sends anything: each takes its part by itself.
    parallelize_module(decoder, mesh, styles, src_data_rank=None)
    for name, module in adapted.items():
        split_adapter(module, mesh, by_rows=kinds[name] != COLUMNS)
    for name in {parent(name) for name, kind in kinds.items() if kind == COLUMNS}:
        # Once for all layers split by columns that have one input, so that its gradient is summed once.
        decoder.get_submodule(name).register_forward_pre_hook(partial(_mark, mesh), with_kwargs=True)
    of_heads = {decoder.get_submodule(name) for name, kind in kinds.items() if kind == OF_A_HEAD}
    made: dict[nn.Parameter, nn.Parameter] = {}
    of_words = _divided(model, mesh.size())
    for module in of_words:
        _keep_part(module, mesh, made)
    for experts in stacked_experts(model).values():
        names = distribute(experts, mesh, OWN, made)
        have_part(experts, mesh)
        own = partial(with_local, experts, names, OWN, experts.forward)
        experts.forward = partial(of_all_ranks, experts, mesh, own)
    for module in model.modules():
        if module not in of_words:
            _keep_whole(module, mesh, Partial() if module in of_heads else Replicate(), made)


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
    distribute(module, mesh, Shard(0), made)
    if isinstance(module, nn.Embedding):
        words: Any = module
        words.forward = partial(embed, module, module.forward)


def _keep_whole(
    module: nn.Module, mesh: DeviceMesh, gradient: Placement, made: dict[nn.Parameter, nn.Parameter]
) -> None:
    """Let every rank have the module's own parameters, as far as they are not split, and compute with them
    as without a group. `made`: what parameters became, of which tied ones stay one."""
    names = distribute(module, mesh, Replicate(), made)
    if names:
        module.forward = partial(with_local, module, names, gradient, module.forward)


def on_meta(model: nn.Module) -> None:
    """Put the model's parameters on the meta device; tied ones stay one, buffers stay where they are."""
    made: dict[nn.Parameter, nn.Parameter] = {}
    for module in model.modules():
        for name, parameter in list(module.named_parameters(recurse=False)):
            if parameter not in made:
                empty = torch.empty_like(parameter, device="meta")
                made[parameter] = nn.Parameter(empty, requires_grad=parameter.requires_grad)
            module.register_parameter(name, made[parameter])
