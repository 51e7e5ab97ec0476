"""Layers of a model, compiled.

Guarantees: the model's weights keep their names; what wraps layers (sharding, recomputation of whole ones)
stays outside of what is compiled; layers that are alike share what is compiled, whatever their number; what
is compiled for a pass of many tokens serves one of few as well.
"""

import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from torch._dynamo.callback import callback_handler
from torch._dynamo.utils import get_compilation_metrics

from rljob_runtime.manifest.loaded_model import layers_to_compile
from rljob_runtime.trainer.activations import KEPT, leave_to_compiler

OPTIONS: Mapping[str, bool] = {"triton.mix_order_reduction_non_strict_mode": True}
"""Of torch's compiler for GPUs, where it has them. By itself it fuses the two reductions of a norm's gradient
only from some thousands of tokens on, and compiles for such passes alone, so that a shorter one compiles all
again, which takes 18 s in the midst of training. With this they are fused for any number of tokens."""


class Compilations:
    """What torch compiles in this process after this was made: a layer that meets sizes of a new kind, or the
    backward part of one, which is compiled when it is run first."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        """`clock` tells seconds."""
        self._clock = clock
        self._seconds = 0.0
        self._since: float | None = None
        self._told = {each.compile_id for each in get_compilation_metrics()}
        callback_handler.register_start_callback(self._begins)
        callback_handler.register_end_callback(self._ends)

    def __call__(self) -> float:
        """Seconds in which something was compiled, until now."""
        under_way = 0.0 if self._since is None else self._clock() - self._since
        return self._seconds + under_way

    def why(self) -> list[str]:
        """Why what was compiled before was compiled anew since the last call, a line for each function, as
        torch tells it; it keeps the newest 64 only."""
        new = [each for each in get_compilation_metrics() if each.compile_id not in self._told]
        self._told |= {each.compile_id for each in new}
        again = {f"{_named(each)} anew: {_short(why)}" for each in new if (why := each.recompile_reason)}
        return sorted(again)

    def close(self) -> None:
        """Count no more; a second call does nothing."""
        # torch raises where it is not there any more.
        with suppress(ValueError):
            callback_handler.remove_start_callback(self._begins)
        with suppress(ValueError):
            callback_handler.remove_end_callback(self._ends)

    def _begins(self, *_: Any) -> None:
        self._since = self._clock()

    def _ends(self, *_: Any) -> None:
        if self._since is not None:
            self._seconds += self._clock() - self._since
            self._since = None


def _named(compiled: Any) -> str:
    """The function that was compiled, and where it is written."""
    return f"{compiled.co_name} ({Path(compiled.co_filename or '').name}:{compiled.co_firstlineno})"


def _short(reason: str) -> str:
    """torch's words for why a function was compiled anew, without the lines of code that it quotes."""
    return " ".join(reason.split("#")[0].split())


def compile_layers(model: Any) -> None:
    """Let each layer of a Hugging Face model be compiled when it is called first. Raises `UnsupportedModel`
    where the model does not say which of its modules are layers."""
    layers = layers_to_compile(model)
    # It takes seconds to import, which only what compiles needs to spend.
    from torch._inductor import list_options

    # By itself torch takes numbers that modules have, as the size of a head, for open sizes too where the
    # modules are sharded: a hundred conditions more for each layer, of which it reasons for most of the time.
    torch._dynamo.config.skip_fsdp_guards = False
    options: dict[str, Any] = {name: value for name, value in OPTIONS.items() if name in list_options()}
    left = [leave_to_compiler(layer) for layer in layers]
    if any(left):
        from rljob_runtime.trainer.kept_products import KeepProducts

        options["joint_custom_pre_pass"] = KeepProducts(KEPT)
    for layer in layers:
        # Open sizes from the first call on: micro-batches differ in tokens and in samples.
        layer.forward = torch.compile(layer.forward, dynamic=True, options=options)
