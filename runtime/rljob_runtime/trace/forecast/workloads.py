"""Workloads of a simulated job: drawn from the assumed lengths, or recorded ones. Pure."""

import numpy as np

from rljob_api.job import Spec
from rljob_runtime.data.length_trace import LengthTrace
from rljob_runtime.simulate.compare import Draw
from rljob_runtime.simulate.site import Site
from rljob_runtime.simulate.workload import Workload


def refusal(trace: LengthTrace, spec: Spec) -> str | None:
    """Why a trace does not fit a job, or None."""
    rollout = spec.training.rollout
    samples, longest = trace.header.samples_per_prompt, rollout.max_response_tokens
    if not len(trace.uids):
        return "holds no prompt with all its responses"
    if samples != rollout.samples_per_prompt:
        return (
            f"has {samples} responses to each prompt, and spec.training.rollout.samplesPerPrompt is "
            f"{rollout.samples_per_prompt}: it was recorded by another job"
        )
    if (most := int(trace.tokens.max())) > longest:
        return (
            f"has a response of {most} tokens, and spec.training.rollout.maxResponseTokens is {longest}: it "
            "was recorded by another job"
        )
    return None


def drawn(site: Site, seed: int) -> Workload:
    """From the assumed lengths."""
    return site.draw(seed)


def recorded(trace: LengthTrace) -> Draw:
    """The recorded groups in their order, again from the first one where they do not suffice. Seed 0 begins
    with the first group, and each further seed at a random one."""

    def draw(site: Site, seed: int) -> Workload:
        count = len(trace.uids)
        first = 0 if seed == 0 else int(np.random.default_rng(seed).integers(count))
        places = (first + np.arange(site.groups)) % count
        return Workload(
            np.maximum(trace.tokens[places], 1).astype(np.int64),
            np.maximum(trace.prompt_tokens[places], 1).astype(np.int64),
            trace.rows[places].astype(np.int64),
            site.waits,
        )

    return draw
