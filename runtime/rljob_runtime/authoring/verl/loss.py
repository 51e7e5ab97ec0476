"""The policy loss from a launch of verl: its family, its bounds, importance weights."""

import re
from collections.abc import Mapping

from rljob_runtime.authoring.verl.given import Given

_ACTOR = "actor_rollout_ref.actor"
_MODE = f"{_ACTOR}.policy_loss.loss_mode"
_CORRECTION = "algorithm.rollout_correction"
_LOSS = "training.algorithm.policyLoss"
_MAIN = f"{_CORRECTION}.bypass_mode"
_OWN = "async_training.use_rollout_log_probs"
_PROXIMAL = "async_training.compute_prox_log_prob"
_TRIGGER = "async_training.trigger_parameter_sync_step"
_FAMILIES = {"vanilla": "clip", "gspo": "gspo", "cispo": "cispo", "dppo_tv": "dppoTv", "sapo": "sapo"}

_Bounds = dict[str, tuple[str, object]]
"""By the field's name: the key that a value is of, and the value."""


def policy_loss(given: Given) -> None:
    """The objective."""
    mode = given.text(_MODE) or "vanilla"
    if mode not in _FAMILIES:
        given.tell(_MODE, f"no counterpart: clip is left (allowed: {', '.join(_FAMILIES)})")
        mode = "vanilla"
    proximal = _proximal(given)
    weights = _weights(given)
    if proximal is None and weights:
        words = "of no effect in verl where the ratio is against the engines' policy, and left out"
        given.tell(f"{_CORRECTION}.rollout_is", words, False)
        given.accounted.add(f"{_CORRECTION}.rollout_is_threshold")
        weights = {}
    corrected = "decoupledClip" if mode == "vanilla" else "training.algorithm.rolloutCorrection"
    if proximal == _MAIN and not weights:
        given.tell(
            _LOSS,
            f"{_FAMILIES[mode]} takes ratios against the engines' log-probabilities, where verl computes "
            f"them again by the trainer (bypass_mode: False): {corrected} does that too, and weighs the "
            "difference",
        )
    elif proximal not in (None, _MAIN):
        _tell_of_recipe(given, proximal, corrected, bool(weights))
        weights = weights or {"level": (proximal, "token")}
    if mode == "vanilla":
        dual = _first(given, 3.0, f"{_ACTOR}.clip_ratio_c")
        field = f"{_LOSS}.{'decoupledClip' if weights else 'clip'}"
        _set(given, field, _sides(given) | {"dual": dual} | weights)
        return
    _set(given, f"{_LOSS}.{_FAMILIES[mode]}", _bounds(given, mode))
    if weights:
        _set(given, "training.algorithm.rolloutCorrection", weights)


def _proximal(given: Given) -> str | None:
    """The key by which verl takes the ratio against log-probabilities that its trainer computes; None where
    it takes it against the engines'."""
    if given.program.asynchronous:
        own, proximal = given.flag(_OWN) is not False, given.flag(_PROXIMAL) is True
        return _PROXIMAL if own and proximal else None if own else _OWN
    bypassed = given.flag(_MAIN)
    if bypassed is False or (bypassed is None and not given.program.bypass):
        return _MAIN
    if bypassed:
        given.tell(_MAIN, "the ratio is against the engines' policy here too", False)
    return None


def _tell_of_recipe(given: Given, key: str, corrected: str, weighed: bool) -> None:
    """Where the trainer's policy in the fully-async recipe, asked for by `key`, is another than that here."""
    parts = []
    if not weighed:
        parts.append(
            f"{corrected} takes the ratio against the trainer's policy, and weighs each token by that "
            "policy's ratio to the engines'; verl does so with rollout_is alone"
        )
    if key == _PROXIMAL and given.integer(_TRIGGER) != 1:
        parts.append(
            "the trainer's policy is that of the step's begin here, in verl that of the version's first "
            "step: the same with stepsPerVersion: 1"
        )
    given.tell(key, "; ".join(parts) or f"the ratio against the trainer's policy is {corrected}", bool(parts))


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
    """verl's bounds of each side are 0.2 unless they are given; `clip_ratio` counts where they are null."""
    both = f"{_ACTOR}.clip_ratio"
    sides: _Bounds = {}
    for side in ("low", "high"):
        key = f"{both}_{side}"
        keys = (key, both) if given.empty(key) else (key,)
        sides[side] = _first(given, 0.2, *keys)
    if given.known(both) and both not in (key for key, _ in sides.values()):
        words = "of no effect in verl: clip_ratio_low and clip_ratio_high, 0.2 by default, count instead"
        given.tell(both, words, False)
    return sides


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
