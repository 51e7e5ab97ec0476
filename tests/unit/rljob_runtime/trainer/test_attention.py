"""What a compiler sees of attention."""

import torch
from torch import Tensor
from torch._dynamo.testing import CompileCounter

from rljob_runtime.trainer.attention import _attention, for_compiled
from rljob_runtime.trainer.attention_call import AttentionCall
from rljob_runtime.trainer.rectangles import Rectangles
from rljob_runtime.trainer.varlen import Varlen

CPU = torch.device("cpu")


class Layer(torch.nn.Module):
    def forward(self, hidden: Tensor, **options: object) -> Tensor:
        heads = torch.stack([2 * hidden, hidden], dim=1)
        found, _ = _attention(self, heads, heads, heads, None, packing=options["packing"])  # type: ignore[arg-type]
        return 3 * found.flatten(2)


def test_layers_are_not_compiled_anew_for_other_rectangles() -> None:
    """After eight times torch gives up, and layers are not compiled from then on."""
    counter = CompileCounter()
    layer = Layer()
    compiled = torch.compile(layer.forward, backend=counter, dynamic=True)
    counts = []
    for lengths in (
        [5, 5],
        [5, 3, 3],
        [9, 1, 40, 41],
        [7, 20, 90, 300, 3],
        [11],
        *([n, 3 * n] for n in range(2, 12)),
    ):
        hidden = torch.randn(1, sum(lengths), 4)
        layout = Rectangles.of(lengths, CPU)
        torch.testing.assert_close(
            compiled(hidden, packing=for_compiled(layout, shared=False)), layer(hidden, packing=layout)
        )
        counts.append(counter.frame_count)
    assert set(counts) == {2}, "once before attention, once behind it"


class OnCpu(Varlen):
    """With a stand-in for the kernel, whose result lies in memory as queries do, as the kernel's does."""

    def attend(self, call: AttentionCall) -> Tensor:
        return call.query[0].transpose(0, 1)[None]


def test_passes_that_ranks_share_and_others_are_compiled_once() -> None:
    """Ranks have different passes: what one compiles, all of them have compiled in the first pass."""
    counter = CompileCounter()
    layer = Layer()
    compiled = torch.compile(layer.forward, backend=counter, dynamic=True)
    counts = []
    for lengths, kind in ([5, 5], Rectangles), ([5, 3, 3], OnCpu), ([9, 1], Rectangles), ([3], OnCpu):
        hidden = torch.randn(1, sum(lengths), 4)
        layout = kind.of(lengths, CPU)
        torch.testing.assert_close(
            compiled(hidden, packing=for_compiled(layout, shared=True)), layer(hidden, packing=layout)
        )
        counts.append(counter.frame_count)
    assert set(counts) == {2}
