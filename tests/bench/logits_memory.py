"""The most memory that log-probabilities take, forward and backward, beside the plain form's.

A head with Qwen3's vocabulary in bfloat16, hidden states of random numbers. On a CPU what is alive is counted
tensor by tensor, with few tokens and small chunks. On a GPU it is what the allocator gave at most, with what
is done with logits compiled, as a step does it; beside it stands how long it takes, the second time. Hidden
states and the head's weights are not counted, their gradients are.

    python -m tests.bench.logits_memory
    python -m tests.bench.logits_memory --device cuda --tokens 32768 --width 2048 --mib 1024 6144
"""

import time
from typing import Any

import torch
from torch.nn import functional

from rljob_runtime.trainer import log_probs
from rljob_runtime.trainer.log_probs import Scores, Scoring, plain_scores, scores
from rljob_runtime.trainer.sampling_distribution import Distribution
from tests.bench.figures import Figure, parser, record
from tests.support.runtime.live_memory import Made, storages

VOCABULARY = 151_936
SLICE = 2**22
"""Logits that are worked on at a time, on a CPU."""


class Peak(Made):  # type: ignore[no-untyped-call]
    """Knows how much memory was in use at most."""

    def __init__(self) -> None:
        super().__init__()
        self.most: int = 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = super().__torch_dispatch__(function, types, args, kwargs)
        given = {storage._cdata for storage in storages((args, kwargs))}
        # Views make nothing.
        if any(storage._cdata not in given for storage in storages(out)):
            self.most = max(self.most, self.held())
        return out


class Head:
    """Hidden states, and what they are multiplied by."""

    def __init__(self, tokens: int, width: int, device: str) -> None:
        torch.manual_seed(0)
        self.hidden = torch.randn(tokens, width, device=device).bfloat16().requires_grad_()
        self.weight = torch.randn(VOCABULARY, width, device=device).bfloat16().requires_grad_()
        self.targets = torch.randint(VOCABULARY, (tokens,), device=device)

    def run(self, mib: int, entropy: bool, plain: bool) -> None:
        """Forward and backward."""
        self.hidden.grad = self.weight.grad = None
        compiled = self.hidden.is_cuda and not plain
        how = Scoring(Distribution(0.9), "gradient" if entropy else "none", mib * 2**20 // 2, compiled)
        found: Scores
        if plain:
            found = plain_scores(functional.linear(self.hidden, self.weight), self.targets, how)
        else:
            found = scores(self.hidden, self.weight, None, self.targets, how)
        total = found.log_probs.sum()
        if found.entropies is not None:
            total = total + found.entropies.sum()
        total.backward()  # type: ignore[no-untyped-call]


def counted(head: Head, mib: int, entropy: bool, plain: bool) -> tuple[float, None]:
    """MiB at most, by tensors."""
    peak = Peak()
    with peak:
        head.run(mib, entropy, plain)
    return peak.most / 2**20, None


def allocated(head: Head, mib: int, entropy: bool, plain: bool) -> tuple[float | None, float | None]:
    """MiB at most, by the GPU's allocator, and the milliseconds of the second time; None where there is not
    that much memory."""
    try:
        head.run(mib, entropy, plain)
        head.hidden.grad = head.weight.grad = None
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before, start = torch.cuda.memory_allocated(), time.perf_counter()
        head.run(mib, entropy, plain)
        torch.cuda.synchronize()
        seconds = time.perf_counter() - start
        return (torch.cuda.max_memory_allocated() - before) / 2**20, 1e3 * seconds
    except torch.OutOfMemoryError:
        return None, None
    finally:
        torch.cuda.empty_cache()


def main() -> None:
    line = parser(__doc__)
    line.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    line.add_argument("--tokens", type=int, default=1024)
    line.add_argument("--width", type=int, default=64)
    line.add_argument("--mib", type=int, nargs="+", default=[32], help="compute.logitsMiB")
    options = line.parse_args()
    on_gpu = options.device == "cuda"
    if not on_gpu:
        log_probs._SLICE = SLICE
    measure = allocated if on_gpu else counted
    head = Head(options.tokens, options.width, options.device)
    figures = []
    for entropy, name in (False, "log-probabilities"), (True, "with entropies that are trained"):
        plain, plain_ms = measure(head, options.mib[0], entropy, True)
        for mib in options.mib:
            what = f"{options.tokens:,} tokens, vocabulary {VOCABULARY:,}, logitsMiB {mib}"
            what += f", on a GPU, width {options.width:,}: {name}" if on_gpu else f": {name}"
            most, taken = measure(head, mib, entropy, False)
            if most is not None:
                figures.append(Figure(what, most, "MiB", plain))
            if taken is not None:
                figures.append(Figure(f"{what}: time", taken, "ms", plain_ms))
    record("logits_memory", figures, options.out, keep=True)


if __name__ == "__main__":
    main()
