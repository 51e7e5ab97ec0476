"""Which responses are left out of the policy loss, whatever loss that is."""

from torch import Tensor

from rljob_api.algorithm import OffPolicyMask
from rljob_runtime.objective.tokens import Tokens, response_means


def off_policy(setting: OffPolicyMask, tokens: Tokens) -> Tensor:
    """Off-policy sequence masking (DeepSeek-V3.2, arXiv:2512.02556, eq. 9): true at each token of a response
    with a negative advantage whose mean of log(pi_engine / pi) is above the bound. Pushed down further, such
    a response teaches nothing of the policy as it is now."""
    divergence = response_means((tokens.engine - tokens.new).detach(), tokens.responses)
    return (tokens.advantages < 0) & (divergence > setting.max_divergence)
