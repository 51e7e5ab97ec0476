"""Stacked experts of which each rank of a tensor group has an equal part by number.

Every rank routes all tokens of the group's samples alike, with the whole router. It computes what its own
experts make of them, and the ranks add that.

Guarantees: gradients of hidden states and of the router's weights are those of all experts, on every rank;
nothing is multiplied for experts of other ranks, but rows of zeros where each has a single one; a rank none
of whose experts got a token takes part in the group's sums as the others.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Shard

from rljob_runtime.trainer.tensor_sums import added, entered, reached

OWN = Shard(0)
"""How the group's ranks have the tensors of stacked experts."""


def have_part(experts: Any, mesh: DeviceMesh) -> None:
    """Let a module of stacked experts, whose tensors are split, count those of a rank."""
    experts.num_experts //= mesh.size()
    # For versions of transformers that ask: numbers from `num_experts` on are not its own.
    experts._is_expert_parallel = True


def of_all_ranks(
    experts: Any,
    mesh: DeviceMesh,
    forward: Callable[..., Tensor],
    hidden_states: Tensor,
    top_k_index: Tensor,
    top_k_weights: Tensor,
) -> Tensor:
    """What all experts make of hidden states. `forward`: what this rank's do; the rest as transformers calls
    them, with the numbers of all experts."""
    group: Any = mesh.get_group()
    hidden, weights = entered((hidden_states, top_k_weights), group)
    count = experts.num_experts
    numbers = own_numbers(top_k_index, mesh.get_local_rank() * count, count)
    if experts.config._experts_implementation == "grouped_mm":
        # It puts rows of numbers above its experts' last, and does not multiply them. What it says of their
        # weights' gradients may be anything.
        found = forward(hidden, numbers, torch.where(numbers < count, weights, 0))
    else:
        found = of_own_rows(forward, hidden, numbers, weights, count)
    if torch.is_grad_enabled() and not found.requires_grad:
        # No token chose any of them.
        found = reached(found, (hidden, weights, *experts.parameters()))
    return added(found, group)


def own_numbers(numbers: Tensor, first: int, count: int) -> Tensor:
    """Of experts by their numbers among all those of a rank, which are `count` from `first` on; `count` for
    those of others."""
    places = numbers - first
    return torch.where((places >= 0) & (places < count), places, count)


def of_own_rows(
    forward: Callable[..., Tensor], hidden: Tensor, numbers: Tensor, weights: Tensor, count: int
) -> Tensor:
    """What a rank's experts make of hidden states, by a `forward` that knows no other experts. Waits for the
    device, as such ones do."""
    tokens, places = torch.nonzero(numbers < count, as_tuple=True)
    chosen, parts = numbers[tokens, places], weights[tokens, places]
    found = forward(hidden.index_select(0, tokens), chosen[:, None], parts[:, None])
    return torch.zeros_like(hidden).index_add(0, tokens, found)
