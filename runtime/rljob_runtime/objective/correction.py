"""Weights that correct for tokens which were drawn by another policy than the one that is trained."""

from torch import Tensor

from rljob_api.algorithm import ImportanceWeights
from rljob_runtime.objective.tokens import ratio_of, response_sums


def importance_weights(setting: ImportanceWeights, log_ratio: Tensor, responses: Tensor) -> Tensor:
    """Detached weight of each token, from `log_ratio`, the logarithm of the proximal policy's probability by
    the engines': of the token, or of its whole response, whose log-ratio is the sum over its tokens."""
    log_ratio = log_ratio.detach()
    if setting.level == "sequence":
        log_ratio = response_sums(log_ratio, responses)
    weight = ratio_of(log_ratio)
    if setting.outside == "truncate":
        return weight.clamp(setting.weight_floor, setting.weight_cap)
    return weight * ((weight >= setting.weight_floor) & (weight <= setting.weight_cap))
