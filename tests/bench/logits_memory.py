"""The most memory that log-probabilities take, forward and backward, beside the plain form's.

A head with Qwen3's vocabulary in bfloat16, hidden states of random numbers; what is alive is counted tensor
by tensor on the CPU. Hidden states and the head's weights are not counted, their gradients are.

    python -m tests.bench.logits_memory
"""

from typing import Any

import torch
from torch.nn import functional

from rljob_runtime.trainer import log_probs
from rljob_runtime.trainer.log_probs import Scores, Scoring, plain_scores, scores
from rljob_runtime.trainer.sampling_distribution import Distribution
from tests.bench.figures import Figure, parser, record
from tests.support.runtime.live_memory import Made

VOCABULARY, WIDTH, TOKENS = 151_936, 64, 1024
MIB = 32
SLICE = 2**22


class Peak(Made):  # type: ignore[no-untyped-call]
    """Knows how much memory was in use at most."""

    def __init__(self) -> None:
        super().__init__()
        self.most: int = 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = super().__torch_dispatch__(function, types, args, kwargs)
        self.most = max(self.most, self.held())
        return out


def most(entropy: bool, plain: bool) -> float:
    """MiB."""
    torch.manual_seed(0)
    hidden = torch.randn(TOKENS, WIDTH).bfloat16().requires_grad_()
    weight = torch.randn(VOCABULARY, WIDTH).bfloat16().requires_grad_()
    targets = torch.randint(VOCABULARY, (TOKENS,))
    how = Scoring(Distribution(0.9), "gradient" if entropy else "none", MIB * 2**20 // 2)
    peak = Peak()
    with peak:
        found: Scores
        if plain:
            found = plain_scores(functional.linear(hidden, weight), targets, how)
        else:
            found = scores(hidden, weight, None, targets, how)
        total = found.log_probs.sum()
        if found.entropies is not None:
            total = total + found.entropies.sum()
        total.backward()  # type: ignore[no-untyped-call]
    return peak.most / 2**20


def main() -> None:
    out = parser(__doc__).parse_args().out
    log_probs._SLICE = SLICE
    what = f"{TOKENS:,} tokens, vocabulary {VOCABULARY:,}, logitsMiB {MIB}"
    record(
        "logits_memory",
        [
            Figure(f"{what}: {name}", most(entropy, False), "MiB", most(entropy, True))
            for name, entropy in (("log-probabilities", False), ("with entropies that are trained", True))
        ],
        out,
    )


if __name__ == "__main__":
    main()
