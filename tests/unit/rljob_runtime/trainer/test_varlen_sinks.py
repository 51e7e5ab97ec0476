"""Attention with sinks by FlashAttention's two passes, against attention in blocks, in float64."""

import pytest
import torch
from torch import Tensor

from rljob_runtime.job_errors import UnsupportedModel
from rljob_runtime.trainer.attention_call import AttentionCall
from rljob_runtime.trainer.rectangles import Rectangles
from rljob_runtime.trainer.varlen import Varlen
from tests.support.runtime import varlen_on_cpu

CPU = torch.device("cpu")
LENGTHS, HEADS, SHARED, SIZE = (5, 1, 70, 9), 4, 2, 8


def drawn() -> list[Tensor]:
    """Queries, keys, values and sinks, and a slope of the result; some sinks outweigh all keys."""
    torch.manual_seed(0)
    tokens = sum(LENGTHS)
    shapes = ((1, HEADS, tokens, SIZE), (1, SHARED, tokens, SIZE), (1, SHARED, tokens, SIZE))
    found = [torch.randn(shape, dtype=torch.float64) for shape in shapes]
    found.append(torch.tensor([-30.0, 0.5, 3.0, 30.0], dtype=torch.float64))
    return [
        *(each.requires_grad_() for each in found),
        torch.randn(1, tokens, HEADS, SIZE, dtype=torch.float64),
    ]


def results(attend, scaling: float | None, window: int | None) -> list[Tensor]:  # type: ignore[no-untyped-def]
    *inputs, slope = drawn()
    query, key, value, sinks = inputs
    out = attend(AttentionCall(torch.nn.Module(), query, key, value, scaling, window, None, sinks))
    return [out, *torch.autograd.grad((out * slope).sum(), inputs)]


@pytest.mark.parametrize("scaling", [None, 1.3])
@pytest.mark.parametrize("window", [None, 1, 3, 100])
def test_results_and_gradients_are_those_of_blocks(scaling: float | None, window: int | None) -> None:
    exact = results(Rectangles.of(LENGTHS, CPU).attend, scaling, window)
    with varlen_on_cpu.installed():
        found = results(Varlen.with_sinks(LENGTHS, CPU).attend, scaling, window)
    for one, other in zip(found, exact, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12)


def test_it_can_be_part_of_a_compiled_layer() -> None:
    """Which takes the kernel's sums for float32, as they are on a GPU."""
    layout = Varlen.with_sinks(LENGTHS, CPU)
    with varlen_on_cpu.installed():
        eager = results(layout.attend, None, 3)
        found = results(torch.compile(layout.attend, backend="aot_eager", fullgraph=True), None, 3)
    for one, other in zip(found, eager, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-6, atol=1e-6)


def test_a_cap_is_refused() -> None:
    query, key, value, sinks, _ = drawn()
    call = AttentionCall(torch.nn.Module(), query, key, value, None, None, 2.0, sinks)
    with pytest.raises(UnsupportedModel, match=r"a cap of scores.*attention: rectangles"):
        Varlen.with_sinks(LENGTHS, CPU).attend(call)
