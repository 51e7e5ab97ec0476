"""The policy as the trainer sees it: log-probabilities and entropies of responses.

Guarantees: log-probabilities are those of the distribution that engines sample from (temperature, top-k and
top-p included), in float32; logits are computed at response positions alone and never held for more than
`logits` numbers at a time, forward and backward; dropout is off.
"""

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from rljob_runtime.manifest.logit_factor import logit_cap, logit_factor
from rljob_runtime.trainer.attention import for_compiled
from rljob_runtime.trainer.compilation import compile_layers
from rljob_runtime.trainer.log_probs import Entropy, Scores, Scoring, plain_scores, scores
from rljob_runtime.trainer.packing import Packed
from rljob_runtime.trainer.sampling_distribution import Distribution
from rljob_runtime.trainer.tensor_parameters import local, whole_on_each
from rljob_runtime.trainer.vocabulary import Part, scores_of_parts

_LOGITS = 2**27
"""Logits that are held at a time, in numbers: 512 MiB in float32."""


class Policy(nn.Module):
    """A Hugging Face causal language model that scores packed responses."""

    def __init__(self, model: Any, distribution: Distribution, logits: int = _LOGITS) -> None:
        """`model` was built with `attention.ATTENTION`; `logits`: how many are held at a time, in numbers."""
        super().__init__()
        self.model = model
        text = model.config.get_text_config()
        # Logits times a factor, divided by the temperature, are logits divided by less.
        temperature = distribution.temperature / logit_factor(text)
        self._distribution = replace(distribution, temperature=temperature)
        self._cap = logit_cap(text)
        self._logits = logits
        self._compiled = False
        self._shared = False
        for module in model.modules():
            if isinstance(module, nn.Dropout):
                module.p = 0.0
            if isinstance(getattr(module, "attention_dropout", None), float):
                module.attention_dropout = 0.0

    def tune(self, logits: int, compiled: bool, shared: bool = False) -> None:
        """Hold so many logits at a time, in numbers; with `compiled`, each layer and what is done with logits
        goes through torch.compile from now on; `shared`: whether ranks share samples in some passes. To be
        called before the policy is sharded."""
        self._logits = logits
        self._compiled = compiled
        self._shared = shared
        if compiled:
            compile_layers(self.model)

    def forward(self, packed: Packed, entropy: Entropy = "gradient") -> Scores:
        """Log-probability of each response token, and the entropy of the distribution it was drawn from where
        it is asked for."""
        decoder = self.model.get_decoder()
        hidden = decoder(
            input_ids=packed.input_ids,
            position_ids=packed.position_ids,
            use_cache=False,
            packing=for_compiled(packed.layout, self._shared) if self._compiled else packed.layout,
        ).last_hidden_state[0]
        # Not by indexing, whose gradient sorts the indices first.
        hidden = hidden.index_select(0, packed.predicting)
        how = Scoring(self._distribution, entropy, self._logits, self._compiled, self._cap)
        head = self.model.get_output_embeddings()
        if Part.of(head.weight) is not None:
            return scores_of_parts(hidden, head, packed.targets, how)
        if _is_plain(head):
            bias = None if head.bias is None else local(head.bias)
            return scores(hidden, local(head.weight), bias, packed.targets, how)
        return _through(head, hidden, packed.targets, how)


def _is_plain(head: nn.Module) -> bool:
    """Whether the head's weights can be used without calling it: nothing gathers, splits or adapts them when
    it is called. They may be sharded with the whole policy, which has gathered them by then."""
    return type(head) is nn.Linear and whole_on_each(head.weight) and not head._forward_pre_hooks


def _through(head: nn.Module, hidden: Tensor, targets: Tensor, how: Scoring) -> Scores:
    """Scores by calling the head; logits of a part of the tokens at a time, computed again in the backward
    pass."""

    def part(hidden: Tensor, targets: Tensor) -> tuple[Tensor, Tensor | None]:
        return plain_scores(head(hidden), targets, how)

    weight: Any = head.weight
    rows = max(1, how.logits // int(weight.shape[0]))
    parts = [
        checkpoint(part, *each, use_reentrant=False)
        for each in zip(torch.split(hidden, rows), torch.split(targets, rows), strict=True)
    ]
    log_probs, entropies = zip(*parts, strict=True)
    return Scores(torch.cat(log_probs), None if how.entropy == "none" else torch.cat(entropies))
