"""Parameters that the ranks of a tensor group have parts of, or copies.

Guarantees: tied parameters stay one; what a rank computes with are plain tensors of its own numbers.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeAlias

from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Placement, Replicate, distribute_tensor

Made: TypeAlias = dict[nn.Parameter, nn.Parameter]
"""What parameters became."""


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


def distribute(
    module: nn.Module,
    mesh: DeviceMesh,
    placement: Placement,
    made: Made,
    only: str | None = None,
) -> None:
    """Make DTensors of the module's own parameters, or `only` of that, as far as they are none. `made`: what
    parameters of other modules became, of which tied ones stay one."""
    for name, plain in list(module.named_parameters(recurse=False)):
        if isinstance(plain, DTensor) or only not in (None, name):
            continue
        if plain not in made:
            spread = distribute_tensor(plain, mesh, [placement], src_data_rank=None)
            made[plain] = nn.Parameter(spread, requires_grad=plain.requires_grad)
        module.register_parameter(name, made[plain])


class Own(NamedTuple):
    """A parameter, as a rank computes with it."""

    module: nn.Module
    name: str
    gradient: Placement
    """As of `local`."""


def with_own(parameters: Sequence[Own], forward: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
    """`forward`, computed with plain tensors in the place of parameters: what operators make of DTensors'
    gradients depends on their sizes, and torch's compiler does not get through them."""
    kept = [each.module._parameters[each.name] for each in parameters]
    for each, parameter in zip(parameters, kept, strict=True):
        assert parameter is not None
        each.module._parameters[each.name] = local(parameter, each.gradient)  # type: ignore[assignment]
    try:
        return forward(*arguments, **named)
    finally:
        for each, parameter in zip(parameters, kept, strict=True):
            each.module._parameters[each.name] = parameter
