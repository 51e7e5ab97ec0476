"""What stands in for flash-attn's C extension, called as flash-attn 2.8 calls that, with kernels for CPUs in
the place of torch's."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from tests.bench.peers.kernels import flash_attn_2_cuda as kernels
from tests.support.runtime import varlen_on_cpu

HEADS, KEY_HEADS, SIZE, SCALE = 4, 2, 8, 0.3


@pytest.fixture(autouse=True)
def on_cpu() -> Iterator[None]:
    """torch's operators compute on CPUs."""
    whole = {"window_size_left": -1, "window_size_right": -1}

    def forward(*given: Any, scale: float, **window: int) -> tuple[Tensor, ...]:
        *tensors, dropout, causal, _ = given
        assert (dropout, causal, window) == (0.0, True, whole)
        out, sums, state = varlen_on_cpu._forward(*tensors, True, scale, [-1, 0])
        return out, sums, state, state, state

    def backward(*given: Any, scale: float, **window: int) -> tuple[Tensor, ...]:
        *tensors, dropout, causal, state, _ = given
        assert (dropout, causal, window) == (0.0, True, whole)
        return varlen_on_cpu._backward(*tensors, True, state, scale, [-1, 0])

    with torch.library._scoped_library("aten", "IMPL") as library:
        library.impl("_flash_attention_forward", forward, "CPU")
        library.impl("_flash_attention_backward", backward, "CPU")
        yield


def drawn(*shape: int) -> list[Tensor]:
    """Queries, keys and values, of tokens in `shape`."""
    torch.manual_seed(len(shape))
    return [torch.randn(*shape, heads, SIZE) for heads in (HEADS, KEY_HEADS, KEY_HEADS)]


def plain(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """torch's attention over one sample, (tokens, heads, size)."""
    turned = [each.transpose(0, 1)[None] for each in (q, k, v)]
    [out] = scaled_dot_product_attention(*turned, is_causal=True, scale=SCALE, enable_gqa=True)
    return out.transpose(0, 1)


def slopes_of(out: Tensor, given: list[Tensor], slope: Tensor) -> list[Tensor]:
    return list(torch.autograd.grad(out, given, slope))


def check(found: list[Tensor], expected: list[Tensor]) -> None:
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5)


def test_samples_of_different_lengths() -> None:
    lengths = [3, 1, 5]
    given = [each.requires_grad_() for each in drawn(sum(lengths))]
    parts = zip(*[each.split(lengths) for each in given], strict=True)
    expected = torch.cat([plain(*part) for part in parts])
    slope = torch.randn_like(expected)
    q, k, v = (each.detach() for each in given)
    ends = torch.tensor([0, 3, 4, 9], dtype=torch.int32)
    out, sums, _, state = kernels.varlen_fwd(
        q, k, v, None, ends, ends, None, None, None, None, 5, 5, 0.0, SCALE, False, True, -1, -1, 0.0, False,
        None,
    )  # fmt: skip
    gradients = [torch.empty_like(each) for each in (q, k, v)]
    kernels.varlen_bwd(
        slope, q, k, v, out, sums, *gradients, ends, ends, None, 5, 5, 0.0, SCALE, False, True, -1, -1, 0.0,
        False, None, state,
    )  # fmt: skip
    check([out, *gradients], [expected, *slopes_of(expected, given, slope)])


def test_samples_of_one_length() -> None:
    given = [each.requires_grad_() for each in drawn(3, 4)]
    expected = torch.stack([plain(*part) for part in zip(*given, strict=True)])
    slope = torch.randn_like(expected)
    q, k, v = (each.detach() for each in given)
    out, sums, _, state = kernels.fwd(q, k, v, None, None, 0.0, SCALE, True, -1, -1, 0.0, False, None)
    assert sums.shape == (3, HEADS, 4)
    gradients = [torch.empty_like(each) for each in (q, k, v)]
    kernels.bwd(
        slope, q, k, v, out, sums, *gradients, None, 0.0, SCALE, True, -1, -1, 0.0, False, None, state
    )
    check([out, *gradients], [expected, *slopes_of(expected, given, slope)])


@pytest.mark.parametrize(
    ("dropout", "softcap", "alibi", "named"),
    [(0.1, 0.0, None, "dropout_p"), (0.0, 30.0, None, "softcap"), (0.0, 0.0, torch.ones(2), "alibi_slopes")],
)
def test_what_the_kernels_cannot_do_is_refused(
    dropout: float, softcap: float, alibi: Tensor | None, named: str
) -> None:
    q, k, v = drawn(1, 2)
    with pytest.raises(NotImplementedError, match=named):
        kernels.fwd(q, k, v, None, alibi, dropout, SCALE, True, -1, -1, softcap, False, None)
