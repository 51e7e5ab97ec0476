"""The policy loss from a launch of verl: its family, its bounds, importance weights."""

import re
from collections.abc import Mapping

from rljob_runtime.authoring.verl.given import Given

_ACTOR = "actor_rollout_ref.actor"
_MODE = f"{_ACTOR}.policy_loss.loss_mode"
_CORRECTION = "algorithm.rollout_correction"
_LOSS = "training.algorithm.policyLoss"
_FAMILIES = {"vanilla": "clip", "gspo": "gspo", "cispo": "cispo", "dppo_tv": "dppoTv", "sapo": "sapo"}

_Bounds = dict[str, tuple[str, object]]
"""By the field's name: the key that a value is of, and the value."""


def policy_loss(given: Given) -> None:
    """The objective."""
    mode = given.text(_MODE) or "vanilla"
    if mode not in _FAMILIES:
        given.tell(_MODE, f"no counterpart: clip is left (allowed: {', '.join(_FAMILIES)})")
        mode = "vanilla"
    weights = _weights(given)
    own_ratios = given.flag("async_training.use_rollout_log_probs")
    if mode == "vanilla":
        decoupled = bool(weights) or own_ratios is False
        if not (decoupled or given.fully_async or given.flag(f"{_CORRECTION}.bypass_mode")):
            given.tell(
                _LOSS,
                "clip takes ratios against the engines' log-probabilities, where verl computes them again by "
                "the trainer (bypass_mode: False): decoupledClip does that too, and weighs the difference",
            )
        dual = _first(given, 3.0, f"{_ACTOR}.clip_ratio_c")
        _set(
            given,
            f"{_LOSS}.{'decoupledClip' if decoupled else 'clip'}",
            _sides(given) | {"dual": dual} | weights,
        )
        return
    _set(given, f"{_LOSS}.{_FAMILIES[mode]}", _bounds(given, mode))
    if weights or own_ratios is False:
        level = ("async_training.use_rollout_log_probs", "token")
        _set(given, "training.algorithm.rolloutCorrection", weights or {"level": level})


def _bounds(given: Given, mode: str) -> _Bounds:
    if mode == "sapo":
        signs = {"positiveTemperature": ("pos", 1.0), "negativeTemperature": ("neg", 1.05)}
        return {
            name: _first(given, default, f"{_ACTOR}.tau_{sign}", f"{_ACTOR}.policy_loss.tau_{sign}")
            for name, (sign, default) in signs.items()
        }
    sides = _sides(given)
    if mode == "cispo":
        (low_key, low), (high_key, high) = sides["low"], sides["high"]
        # Distances from 1 there, the weights themselves here.
        return {
            "weightFloor": (low_key, max(0.0, 1 - float(str(low)))),
            "weightCap": (high_key, 1 + float(str(high))),
        }
    if mode == "dppo_tv":
        return sides | {"weightCap": _first(given, 3.0, f"{_ACTOR}.clip_ratio_c")}
    return sides


def _sides(given: Given) -> _Bounds:
    both = f"{_ACTOR}.clip_ratio"
    return {side: _first(given, 0.2, f"{both}_{side}", both) for side in ("low", "high")}


def _first(given: Given, default: float, *keys: str) -> tuple[str, float]:
    """The first of some keys that has a number, and the number; else the first key and verl's default."""
    for key in keys:
        number = given.number(key)
        if number is not None:
            return key, number
    return keys[0], default


def _set(given: Given, field: str, bounds: Mapping[str, tuple[str, object]]) -> None:
    taken = [given.take(key, f"{field}.{name}", value) for name, (key, value) in bounds.items()]
    given.accounted.add(_MODE)
    if not any(taken):
        given.put(field, {}, given.origin(_MODE))


def _weights(given: Given) -> _Bounds:
    """Members of ImportanceWeights that the script asks for; none where it asks for no correction."""
    key, threshold_key = f"{_CORRECTION}.rollout_is", f"{_CORRECTION}.rollout_is_threshold"
    level = given.text(key)
    threshold = given.text(threshold_key)
    if level is None:
        return {}
    if level not in ("token", "sequence"):
        given.tell(key, "left out: it must be token or sequence")
        return {}
    numbers = [float(each) for each in re.findall(r"\d+(?:\.\d+)?", threshold or "2.0")]
    weights: _Bounds = {"level": (key, level)}
    if len(numbers) == 2:
        floor, cap = numbers
        weights |= {
            "weightFloor": (threshold_key, floor),
            "weightCap": (threshold_key, cap),
            "outside": (key, "mask"),
        }
    elif len(numbers) == 1:
        weights["weightCap"] = (threshold_key, numbers[0])
    else:
        given.tell(threshold_key, "left out: it must be one number, or two as in 0.5_5.0")
    return weights
