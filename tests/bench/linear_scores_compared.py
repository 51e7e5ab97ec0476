"""Log-probabilities of a head without the logits of all tokens, ours beside other projects' kernels: time and
memory of forward and backward pass, on the same hidden states and head, in bfloat16.

    python -m tests.bench.linear_scores_compared                                     on a GPU
    python -m tests.bench.linear_scores_compared --tokens 256 --width 64             on a CPU: ours alone

The others are measured where they are installed, and named where they are not: `liger-kernel` (its fused
linear cross-entropy) and `cut-cross-entropy` (of 25.1.1 `cce`, which passes over gradients that are too small
for the format); both need Triton and a GPU. The loss is the sum of all log-probabilities, the only one that
each of them has gradients of. What the trainer needs beside it: weights of each token in the loss (Liger's
has gradients of sums and means alone), entropies (neither), top-k and top-p (neither), a temperature (by
scaling hidden states). Logits have a variance of 1.
"""

import importlib
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from rljob_runtime.trainer.log_probs import Scoring, scores
from rljob_runtime.trainer.sampling_distribution import Distribution
from tests.bench.figures import Figure, parser, record
from tests.bench.logits_memory import Head, Peak

REPEATS = 5
Loss = Callable[[Head], Tensor]


def ours(mib: int) -> Loss:
    """With so many MiB of logits at a time."""

    def loss(head: Head) -> Tensor:
        how = Scoring(Distribution(), "none", mib * 2**20 // 2, compiled=head.hidden.is_cuda)
        return scores(head.hidden, head.weight, None, head.targets, how).log_probs.sum()

    return loss


def liger() -> Loss:
    """Liger's."""
    module: Any = importlib.import_module("liger_kernel.transformers")
    found = module.LigerFusedLinearCrossEntropyLoss(reduction="sum")
    return lambda head: -found(head.weight, head.hidden, head.targets)


def cut() -> Loss:
    """Cut-cross-entropy's."""
    module: Any = importlib.import_module("cut_cross_entropy")
    return lambda head: (
        -module.linear_cross_entropy(head.hidden, head.weight, head.targets, reduction="sum", impl="cce")
    )


WAYS: dict[str, Callable[[], Loss]] = {
    "ours, logitsMiB 1024": lambda: ours(1024),
    "ours, logitsMiB 6144": lambda: ours(6144),
    "ours, logitsMiB 10240": lambda: ours(10_240),
    "liger-kernel": liger,
    "cut-cross-entropy, cce": cut,
}


def passes(head: Head, loss: Loss) -> float:
    """Forward and backward; the sum of all log-probabilities."""
    head.hidden.grad = head.weight.grad = None
    total = loss(head)
    total.backward()  # type: ignore[no-untyped-call]
    return float(total.detach())


def on_gpu(head: Head, loss: Loss) -> tuple[float, float]:
    """The least milliseconds of some passes after the first, and the most MiB beside what was there."""
    passes(head, loss)
    head.hidden.grad = head.weight.grad = None
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before, seconds = torch.cuda.memory_allocated(), []
    for _ in range(REPEATS):
        start = time.perf_counter()
        passes(head, loss)
        torch.cuda.synchronize()
        seconds.append(time.perf_counter() - start)
    return 1e3 * min(seconds), (torch.cuda.max_memory_allocated() - before) / 2**20


def on_cpu(head: Head, loss: Loss) -> tuple[float, float]:
    """The same, by tensors, of one pass."""
    with Peak() as peak:
        start = time.perf_counter()
        passes(head, loss)
        return 1e3 * (time.perf_counter() - start), peak.most / 2**20


def main() -> None:
    line = parser(__doc__)
    line.add_argument("--tokens", type=int, default=32_768)
    line.add_argument("--width", type=int, default=2048)
    options = line.parse_args()
    gpu = torch.cuda.is_available()
    head = Head(options.tokens, options.width, "cuda" if gpu else "cpu")
    # Of peaked distributions `cce` would have next to nothing to compute.
    head.weight.data *= options.width**-0.5
    figures: list[Figure] = []
    base: tuple[float | None, float | None] = (None, None)
    sums: dict[str, float] = {}
    for way, make in WAYS.items():
        try:
            loss = make()
        except ImportError as error:
            print(f"left out: {way}, for it is not installed ({error})")
            continue
        milliseconds, mib = (on_gpu if gpu else on_cpu)(head, loss)
        sums[way] = passes(head, loss)
        base = (milliseconds, mib) if not figures else base
        what = f"{options.tokens:,} tokens, width {options.width:,}, {way}"
        figures += [
            Figure(f"{what}: time", milliseconds, "ms", base[0]),
            Figure(f"{what}: memory", mib, "MiB", base[1]),
        ]
        record("linear_scores_compared", figures, options.out, show=False)
        for figure in figures[-2:]:
            print(f"{figure.name}: {figure.value:.4g} {figure.unit}", flush=True)
    for way, total in sums.items():
        print(f"sum of log-probabilities, {way}: {total:.8g}")


if __name__ == "__main__":
    main()
