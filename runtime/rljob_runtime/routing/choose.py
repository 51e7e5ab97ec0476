"""The routing policy that a job asks for. Pure."""

from rljob_api.job import Spec
from rljob_runtime.routing.adaptive import Adaptive
from rljob_runtime.routing.fixed import Adjacent, Interleaved
from rljob_runtime.routing.policy import Policy
from rljob_runtime.routing.probe import ProbePolicy, ProbeSettings


def policy_of(spec: Spec) -> Policy:
    """A new policy, which knows nothing of any request yet."""
    routing, groups = spec.training.rollout.routing, spec.training.groups_per_step
    # Whatever the pools' sizes are now: they may be scaled at any time, and the policy stays.
    if routing is None or routing.adaptive is not None:
        return _adaptive(spec)
    if routing.adjacent is not None:
        return Adjacent(groups)
    if routing.interleaved is not None:
        return Interleaved(groups)
    if (probe := routing.probe) is not None:
        return ProbePolicy(
            ProbeSettings(
                probe.cohort_prompts or groups,
                probe.probes,
                probe.heavy_share,
                probe.cap_factor,
                restart=probe.on_trip == "restart",
            )
        )
    return Policy()


def _adaptive(spec: Spec) -> Adaptive:
    training = spec.training
    # Where stale tokens are masked no step waits for a group because of its deadline.
    waits = training.async_.stale_tokens == "wait"
    return Adaptive(
        training.rollout.max_response_tokens, waits=waits, groups_per_step=training.groups_per_step
    )
