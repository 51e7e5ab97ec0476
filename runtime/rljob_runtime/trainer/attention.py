"""Attention over packed samples, in the form in which transformers' models call it.

Guarantees: every model that takes its attention from transformers' registry gets it from the layout of what
it is given; a model that asks for more than a layout computes is refused.
"""

from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeAlias

import torch
from torch import Tensor

from rljob_runtime.job_errors import UnsupportedModel
from rljob_runtime.manifest.attention_limits import ANOTHER_MODEL, UNKNOWN
from rljob_runtime.trainer.attention_call import AttentionCall
from rljob_runtime.trainer.varlen import Varlen

ATTENTION = "rljob_packed"
"""Name under which transformers finds it."""


class Layout(Protocol):
    """How the tokens of a forward pass attend to one another."""

    def attend(self, call: AttentionCall) -> Tensor:
        """What the layer asked for; shape (1, tokens, heads, head size). In one order in memory: some layers
        view it in another shape."""
        ...


LayOut: TypeAlias = Callable[[Sequence[int], torch.device], Layout]
"""Makes the layout of samples of these lengths, one after the other."""


def register_attention() -> None:
    """Make `ATTENTION` known to transformers."""
    from transformers import AttentionInterface

    AttentionInterface.register(ATTENTION, _attention)


def _attention(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    packing: Layout | None = None,
    **options: Any,
) -> tuple[Tensor, None]:
    """In the form of transformers' attention functions; shapes as in `AttentionCall`."""
    unknown = {name for name in UNKNOWN if options.get(name) is not None}
    if attention_mask is not None:
        # transformers makes none for an attention that it has no masks of.
        unknown.add("a mask of its own")
    if packing is None or unknown:
        what = (
            f"attention with {', '.join(sorted(unknown))}" if unknown else "an attention call of its own kind"
        )
        raise UnsupportedModel(
            f"{type(module).__name__}: {what} is not supported by the trainer: {ANOTHER_MODEL}"
        )
    call = AttentionCall(module, query, key, value, scaling, sliding_window, softcap, s_aux)
    return packing.attend(call), None


def for_compiled(layout: Layout, shared: bool) -> Layout:
    """The same for a model whose layers are compiled; `shared`: whether ranks share some of its passes."""
    # A kernel for samples of any lengths is part of what is compiled, and differs in sizes alone. Where other
    # passes communicate in attention, all are compiled alike: what the first pass compiles serves every other
    # one, so that no rank waits in a collective call for another one that compiles.
    return layout if isinstance(layout, Varlen) and not shared else _Apart(layout)


class _Apart:
    """A layout that differs from micro-batch to micro-batch in more than sizes, or communicates: left out of
    what is compiled, which would otherwise be made anew for each number of rectangles or segments. Not a
    dataclass: of those the compiler looks at every field."""

    def __init__(self, layout: Layout) -> None:
        self._layout = layout

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def attend(self, call: AttentionCall) -> Tensor:
        """See `Layout.attend`."""
        # In one order in memory, as a view of one form: for others what comes behind would be compiled anew.
        return self._layout.attend(call)[0].contiguous()[None]
