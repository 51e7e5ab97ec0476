"""Attention with a cap of scores, or with sinks: a layer's forward and backward pass, in time and memory.

The shapes of a layer of Gemma 2 2B (a cap of 50) and of gpt-oss-20b (sinks), each with and without its
window, in bfloat16, on packed samples:

- blocks: the trainer's own, of matrix products (`trainer/block_attention.py`)
- varlen: torch's FlashAttention with the sink in its sums (`trainer/varlen_sinks.py`), for sinks, on a GPU
- flex: torch's flex_attention, compiled, with the cap as its change of scores, on a GPU
- eager: transformers' own of gpt-oss and Gemma 2, each sample by itself, with all of its scores: the baseline

    python -m tests.bench.attention_forms                                            on a GPU
    python -m tests.bench.attention_forms --tokens 64 --samples 2                    on a CPU: time alone

A way that fails, or needs more memory than there is, is named, and the rest goes on.
"""

import importlib
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from rljob_runtime.trainer.attention_call import AttentionCall
from rljob_runtime.trainer.rectangles import Rectangles
from rljob_runtime.trainer.varlen import Varlen
from tests.bench.figures import Figure, parser, record

REPEATS = 5
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
Attend = Callable[[AttentionCall, Sequence[int]], Tensor]


@dataclass(frozen=True)
class Layer:
    """A layer's attention."""

    family: str
    heads: int
    shared: int
    size: int
    window: int
    cap: float | None = None
    sunk: bool = False


LAYERS = {
    "gemma-2-2b": Layer("gemma2", 8, 4, 256, 4096, cap=50.0),
    "gpt-oss-20b": Layer("gpt_oss", 64, 8, 64, 128, sunk=True),
}


def blocks(call: AttentionCall, lengths: Sequence[int]) -> Tensor:
    return Rectangles.of(lengths, DEVICE).attend(call)


def varlen(call: AttentionCall, lengths: Sequence[int]) -> Tensor:
    return Varlen.with_sinks(lengths, DEVICE).attend(call)


def eager(family: str, call: AttentionCall, lengths: Sequence[int]) -> Tensor:
    """transformers' function, called as its layers call it."""
    module = importlib.import_module(f"transformers.models.{family}.modeling_{family}")
    options = {} if call.cap is None else {"softcap": call.cap}
    parts = []
    cuts = (torch.split(each, list(lengths), 2) for each in (call.query, call.key, call.value))
    for query, key, value in zip(*cuts, strict=True):
        seen = torch.ones(query.shape[2], query.shape[2], dtype=torch.bool, device=DEVICE).tril()
        if call.window is not None:
            seen &= ~seen.tril(-call.window)
        mask = torch.zeros(seen.shape, dtype=query.dtype, device=DEVICE).masked_fill_(~seen, float("-inf"))
        scaling = query.shape[-1] ** -0.5
        found = module.eager_attention_forward(
            call.module, query, key, value, mask[None, None], scaling=scaling, dropout=0.0, **options
        )
        parts.append(found[0])
    return torch.cat(parts, 1)


def flex(call: AttentionCall, lengths: Sequence[int]) -> Tensor:
    from torch.nn.attention.flex_attention import create_block_mask

    cap, window, tokens = call.cap, call.window, call.query.shape[2]
    sample = torch.repeat_interleave(torch.tensor(lengths, device=DEVICE))

    def visible(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        seen = (query >= key) & (sample[query] == sample[key])
        return seen if window is None else seen & (query - key < window)

    def capped(score: Tensor, batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        assert cap is not None
        return cap * torch.tanh(score / cap)

    mask = create_block_mask(visible, None, None, tokens, tokens, device=DEVICE)
    found: Tensor = _flex()(
        call.query, call.key, call.value, score_mod=capped, block_mask=mask, enable_gqa=True
    )
    return found.transpose(1, 2)


_compiled: list[Any] = []


def _flex() -> Any:
    from torch.nn.attention.flex_attention import flex_attention

    if not _compiled:
        _compiled.append(torch.compile(flex_attention))
    return _compiled[0]


def ways(layer: Layer) -> dict[str, Attend]:
    """The baseline first."""
    found: dict[str, Attend] = {"eager": partial(eager, layer.family), "blocks": blocks}
    if DEVICE.type == "cuda":
        found |= {"varlen": varlen} if layer.sunk else {"flex": flex}
    return found


def measure(layer: Layer, window: int | None, attend: Attend, lengths: Sequence[int]) -> tuple[float, float]:
    """The least milliseconds of some passes after the first, and the most MiB beside the inputs."""
    torch.manual_seed(0)
    tokens, gpu = sum(lengths), DEVICE.type == "cuda"
    inputs = [
        torch.randn(1, heads, tokens, layer.size, device=DEVICE, dtype=torch.bfloat16).requires_grad_()
        for heads in (layer.heads, layer.shared, layer.shared)
    ]
    module = torch.nn.Module()
    module.num_key_value_groups = layer.heads // layer.shared  # type: ignore[assignment]
    sinks = None
    if layer.sunk:
        sinks = torch.randn(layer.heads, device=DEVICE, dtype=torch.bfloat16).requires_grad_()
        # Where transformers looks for them.
        module.sinks = sinks
    query, key, value = inputs
    call = AttentionCall(module, query, key, value, None, window, layer.cap, sinks)
    seconds, most = [], 0.0
    for _ in range(REPEATS + 1 if gpu else 1):
        if gpu:
            torch.cuda.synchronize()
            torch.cuda.reset_peak_memory_stats()
        before, start = torch.cuda.memory_allocated() if gpu else 0, time.perf_counter()
        attend(call, lengths).sum().backward()  # type: ignore[no-untyped-call]
        if gpu:
            torch.cuda.synchronize()
            most = (torch.cuda.max_memory_allocated() - before) / 2**20
        seconds.append(time.perf_counter() - start)
        for each in (*inputs, *([] if sinks is None else [sinks])):
            each.grad = None
    return 1e3 * min(seconds), most


def main() -> None:
    line = parser(__doc__)
    line.add_argument("--tokens", type=int, nargs="+", default=[4096, 16_384], help="of a sample")
    line.add_argument("--samples", type=int, default=1, help="packed, of so many tokens each")
    options = line.parse_args()
    for name, layer in LAYERS.items():
        for tokens in options.tokens:
            for window in (None, layer.window):
                base: tuple[float | None, float | None] = (None, None)
                for way, attend in ways(layer).items():
                    sight = "all before" if window is None else f"a window of {window:,}"
                    what = f"{name}, {options.samples} x {tokens:,} tokens, {sight}, {way}"
                    try:
                        found = measure(layer, window, attend, [tokens] * options.samples)
                    except Exception as error:  # noqa: BLE001
                        # The other ways are still worth their time.
                        traceback.print_exc()
                        print(f"{what}: FAILED ({type(error).__name__})", flush=True)
                        continue
                    base = found if way == "eager" else base
                    rows = [Figure(f"{what}: time", found[0], "ms", base[0])]
                    if DEVICE.type == "cuda":
                        rows.append(Figure(f"{what}: memory", found[1], "MiB", base[1]))
                    record("attention_forms", rows, options.out, keep=True)


if __name__ == "__main__":
    main()
