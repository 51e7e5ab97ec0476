"""Parameters that the ranks of a tensor group have parts of, or copies.

Guarantees: tied parameters stay one; what a rank computes with are plain tensors of its own numbers.
"""

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Placement, Replicate, distribute_tensor


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
    made: dict[nn.Parameter, nn.Parameter] | None = None,
) -> list[str]:
    """Make DTensors of the module's own parameters, as far as they are none; the names of these. `made`: what
    parameters of other modules became, of which tied ones stay one."""
    made = {} if made is None else made
    names = [name for name, each in module.named_parameters(recurse=False) if not isinstance(each, DTensor)]
    for name in names:
        plain = module._parameters[name]
        assert plain is not None
        if plain not in made:
            spread = distribute_tensor(plain, mesh, [placement], src_data_rank=None)
            made[plain] = nn.Parameter(spread, requires_grad=plain.requires_grad)
        module.register_parameter(name, made[plain])
    return names


def with_local(
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
