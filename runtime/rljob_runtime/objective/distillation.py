"""On-policy distillation: what a teacher's log-probabilities of the policy's own tokens add to advantages.

Guarantees: no gradient comes from an advantage; every tensor has shape (tokens,); a token's advantage depends
on that token alone.
"""

from dataclasses import replace

from torch import Tensor

from rljob_api.algorithm import Distillation
from rljob_runtime.objective.tokens import Tokens


def towards_teacher(setting: Distillation, tokens: Tokens) -> Tokens:
    """The tokens with coefficient * (log pi_T - sg(log pi)) added to their advantages (Thinking Machines,
    "On-Policy Distillation", 2025; the reverse KL of MiniLLM, arXiv:2306.08543, token by token, without the
    share that later tokens have in it).

    pi are the weights that are trained, as they are now, and not those that drew the token: times a loss's
    ratio pi / pi_old this is the gradient of the reverse KL at pi also where samples are old, and it is 0
    at a token on which policy and teacher agree."""
    return replace(tokens, advantages=tokens.advantages - setting.coefficient * teacher_kl(tokens))


def teacher_kl(tokens: Tokens) -> Tensor:
    """log(pi / pi_T) at each token, in nats and without gradient: the estimate of KL(policy || teacher) from
    tokens that the policy drew, below 0 where the teacher finds a token likelier."""
    if tokens.teacher is None:
        raise ValueError("distillation needs the teacher's log-probabilities")
    return tokens.new.detach() - tokens.teacher
