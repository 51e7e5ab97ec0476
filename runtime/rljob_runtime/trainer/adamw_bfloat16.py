"""AdamW (arXiv:1711.05101) with both moments in bfloat16: 4 bytes for each parameter in place of 8.

Guarantees: all arithmetic is in float32, and an update uses the moments before they are rounded; rounding is
stochastic, so that what is stored is right on average. Rounded to the nearest, a second moment with beta2 of
0.999 would never fall: what it loses in an update is less than half of bfloat16's last digit. How it is
rounded follows from the update's number and the parameter's place alone, so that ranks that hold copies of a
model keep them equal.

Works on plain and on sharded parameters, a part of each at a time, so that the float32 copies stay small.
"""

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

_MOMENTS = ("exp_avg", "exp_avg_sq")
_PART = 2**24
"""Numbers that are worked on at a time: 64 MiB for each float32 copy."""
_PLACES = 2**16
"""More than a model has parameter tensors."""


class AdamWBfloat16(torch.optim.AdamW):
    """Its settings and its state have the names of `torch.optim.AdamW`'s: checkpoints of either fit both."""

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take a saved state, with moments in any format."""
        # torch casts them to the parameters' format.
        super().load_state_dict(state_dict)
        for state in self.state.values():
            for name in _MOMENTS:
                state[name] = state[name].to(torch.bfloat16)

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """Make an update; a parameter without a gradient stays as it is."""
        if closure is not None:
            raise ValueError("this optimizer takes no closure")
        pairs = [(group, each) for group in self.param_groups for each in group["params"]]
        for place, (group, parameter) in enumerate(pairs):
            if parameter.grad is not None:
                self._update(parameter, group, place)

    def _update(self, parameter: torch.nn.Parameter, group: dict[str, Any], place: int) -> None:
        state = self.state[parameter]
        if not state:
            state["step"] = torch.zeros((), dtype=torch.float32)
            for name in _MOMENTS:
                state[name] = torch.zeros_like(parameter, dtype=torch.bfloat16)
        state["step"] += 1
        count, (beta1, beta2), rate = float(state["step"]), group["betas"], float(group["lr"])
        moments = (state["exp_avg"], state["exp_avg_sq"])
        noise = torch.Generator(parameter.device).manual_seed(_PLACES * int(count) + place)
        for weight, gradient, first, second in _parts(parameter, parameter.grad, *moments):
            gradient = gradient.float()
            mean = first.to(torch.float32, copy=True).lerp_(gradient, 1 - beta1)
            square = (
                second.to(torch.float32, copy=True).mul_(beta2).addcmul_(gradient, gradient, value=1 - beta2)
            )
            first.copy_(round_stochastically(mean, noise))
            second.copy_(round_stochastically(square, noise))
            # Moments begin at 0, for which both are corrected.
            scale = square.div_(1 - beta2**count).sqrt_().add_(group["eps"])
            weight.mul_(1 - rate * group["weight_decay"])
            weight.addcdiv_(mean, scale, value=-rate / (1 - beta1**count))


def round_stochastically(values: Tensor, generator: torch.Generator) -> Tensor:
    """`values`, finite and in float32, in bfloat16: up or down at random, each as likely as it is near."""
    # bfloat16 is the upper half of a float32. Noise added to the lower half carries over into it as often as
    # the lower half is large.
    noise = torch.randint(2**16, values.shape, generator=generator, dtype=torch.int32, device=values.device)
    bits = (values.view(torch.int32) + noise) & -(2**16)
    return bits.view(torch.float32).to(torch.bfloat16)


def _parts(*tensors: Tensor | None) -> Iterator[tuple[Tensor, ...]]:
    """This rank's parts of tensors of one shape, some rows at a time, as views."""
    local = [tensor.to_local() if isinstance(tensor, DTensor) else tensor for tensor in tensors]
    found = [tensor for tensor in local if tensor is not None]
    if not found[0].numel():
        return
    rows = [tensor.reshape(1) if tensor.dim() == 0 else tensor for tensor in found]
    width = rows[0][0].numel()
    yield from zip(*(torch.split(tensor, max(1, _PART // width)) for tensor in rows), strict=True)
