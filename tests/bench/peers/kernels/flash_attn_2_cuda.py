"""In the place of flash-attn's C extension, where that is not built: its training calls, over the kernels of
FlashAttention-2 that torch has.

There is no wheel of flash-attn for every torch, and its kernels take long to compile; its Python files
import a module of this name and call four of its functions. What they are given and give back is that of
flash-attn 2.8. Gradients are copied once more than there, into the tensors that flash-attn has made.
What torch's kernels have no argument for (softcap, ALiBi, dropout, paged caches) is refused.
"""

import torch
from torch import Tensor

_NO_DROPOUT = 0.0


def varlen_fwd(
    q: Tensor, k: Tensor, v: Tensor, out: None, ends: Tensor, key_ends: Tensor, used: Tensor | None,
    left_pad: Tensor | None, block_table: Tensor | None, alibi: Tensor | None, longest: int, longest_key: int,
    dropout: float, scale: float, zero: bool, causal: bool, left: int, right: int, softcap: float,
    return_softmax: bool, generator: None,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """Samples one after the other, (tokens, heads, size); `ends`: where each begins, and the last one's end.
    Returns the outputs, the logarithms of the softmax's sums, nothing in particular, and a random state."""
    _refuse(
        seqused_k=used, leftpad_k=left_pad, block_table=block_table, alibi_slopes=alibi, dropout_p=dropout,
        softcap=softcap, return_softmax=return_softmax, out=out,
    )  # fmt: skip
    found, sums, *_ = torch.ops.aten._flash_attention_forward(
        q, k, v, ends, key_ends, longest, longest_key, _NO_DROPOUT, causal, False, scale=scale,
        window_size_left=left, window_size_right=right,
    )  # fmt: skip
    return found, sums, q.new_empty(0), _random_state(q)


def varlen_bwd(
    slope: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, sums: Tensor, dq: Tensor, dk: Tensor,
    dv: Tensor, ends: Tensor, key_ends: Tensor, alibi: Tensor | None, longest: int, longest_key: int,
    dropout: float, scale: float, zero: bool, causal: bool, left: int, right: int, softcap: float,
    deterministic: bool, generator: None, random_state: Tensor,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """Writes the gradients into `dq`, `dk` and `dv`, and returns these and nothing in particular."""
    _refuse(alibi_slopes=alibi, dropout_p=dropout, softcap=softcap, deterministic=deterministic)
    found = torch.ops.aten._flash_attention_backward(
        slope, q, k, v, out, sums, ends, key_ends, longest, longest_key, _NO_DROPOUT, causal,
        _random_state(q), q.new_empty(0), scale=scale, window_size_left=left, window_size_right=right,
    )  # fmt: skip
    for gradient, each in zip((dq, dk, dv), found, strict=True):
        gradient.copy_(each)
    return dq, dk, dv, q.new_empty(0)


def fwd(
    q: Tensor, k: Tensor, v: Tensor, out: None, alibi: Tensor | None, dropout: float, scale: float,
    causal: bool, left: int, right: int, softcap: float, return_softmax: bool, generator: None,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """Samples of one length, (samples, tokens, heads, size)."""
    found, sums, nothing, random_state = varlen_fwd(
        q.flatten(0, 1), k.flatten(0, 1), v.flatten(0, 1), out, _ends(q), _ends(k), None, None, None, alibi,
        q.shape[1], k.shape[1], dropout, scale, False, causal, left, right, softcap, return_softmax,
        generator,
    )  # fmt: skip
    shaped = sums.view(-1, *q.shape[:2]).transpose(0, 1)
    return found.view_as(q), shaped, nothing, random_state


def bwd(
    slope: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, sums: Tensor, dq: Tensor, dk: Tensor,
    dv: Tensor, alibi: Tensor | None, dropout: float, scale: float, causal: bool, left: int, right: int,
    softcap: float, deterministic: bool, generator: None, random_state: Tensor,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """As `varlen_bwd`, of samples of one length."""
    slope_, q_, k_, v_, out_ = (each.flatten(0, 1) for each in (slope, q, k, v, out))
    dq_, dk_, dv_ = (torch.empty_like(each) for each in (q_, k_, v_))
    varlen_bwd(
        slope_, q_, k_, v_, out_, sums.transpose(0, 1).flatten(1).contiguous(), dq_, dk_, dv_,
        _ends(q), _ends(k), alibi, q.shape[1], k.shape[1], dropout, scale, False, causal, left, right,
        softcap, deterministic, generator, random_state,
    )  # fmt: skip
    for gradient, each in zip((dq, dk, dv), (dq_, dk_, dv_), strict=True):
        gradient.copy_(each.view_as(gradient))
    return dq, dk, dv, q.new_empty(0)


def _ends(samples: Tensor) -> Tensor:
    count, tokens = samples.shape[:2]
    return torch.arange(0, (count + 1) * tokens, tokens, dtype=torch.int32, device=samples.device)


def _random_state(like: Tensor) -> Tensor:
    """Of a kernel that drops nothing out."""
    return torch.zeros(2, dtype=torch.uint64, device=like.device)


def _refuse(**options: object) -> None:
    """Raises `NotImplementedError` where one of these is asked for."""
    if asked := [name for name, value in options.items() if isinstance(value, Tensor) or value]:
        raise NotImplementedError(
            f"{', '.join(asked)}: torch's kernels of FlashAttention-2 have no such argument; install "
            "flash-attn with its own kernels"
        )
