"""Workloads of a simulated job: drawn from the assumed lengths, or recorded ones. Pure."""

import numpy as np

from rljob_api.errors import Problem
from rljob_api.job import Spec
from rljob_runtime.data.fingerprint import DataFingerprint
from rljob_runtime.data.length_trace import LengthTrace
from rljob_runtime.simulate.assumptions import Assumptions
from rljob_runtime.simulate.cluster import CacheTooSmall
from rljob_runtime.simulate.compare import Draw
from rljob_runtime.simulate.site import Site
from rljob_runtime.simulate.workload import Workload


def refusal(trace: LengthTrace, spec: Spec, data: DataFingerprint | None = None) -> str | None:
    """Why a trace does not fit a job, or None. `data`: the job's prompts, where they are known."""
    rollout = spec.training.rollout
    samples, longest = trace.header.samples_per_prompt, rollout.max_response_tokens
    longest_prompt = spec.training.data.max_prompt_tokens
    if not len(trace.uids):
        lacking = f": each of its {trace.incomplete:,} lacks some" if trace.incomplete else ""
        without = f", without {trace.left_out}" if trace.unreadable else ""
        return f"holds no prompt with all its {samples} responses{lacking}{without}"
    if samples != rollout.samples_per_prompt:
        return (
            f"has {samples} responses to each prompt, and spec.training.rollout.samplesPerPrompt is "
            f"{rollout.samples_per_prompt}: it was recorded by another job"
        )
    if (most := int(trace.tokens.max())) > longest:
        line = trace.lines.flat[trace.tokens.argmax()]
        return (
            f"has a response of {most:,} tokens (line {line}), and "
            f"spec.training.rollout.maxResponseTokens is {longest}: it was recorded by another job"
        )
    if (most := int(trace.prompt_tokens.max())) > longest_prompt:
        line = trace.lines[trace.prompt_tokens.argmax(), 0]
        return (
            f"has a prompt of {most:,} tokens (line {line}), and spec.training.data.maxPromptTokens is "
            f"{longest_prompt}: it was recorded by another job"
        )
    known = trace.header.data
    # In another order they are the same prompts.
    if known is not None and data is not None and known.content != data.content:
        return (
            f"was recorded by another job: with {known.rows:,} rows of {known.source}, and the {data.rows:,} "
            f"rows of {data.source} have other prompts or answers; name a trace of this data, or take `data` "
            "out of its first line to use its lengths all the same"
        )
    return None


def too_long(site: Site) -> Problem | None:
    """What is wrong with the assumed lengths of a job's responses, or nothing."""
    mean, most = site.assumptions.lengths.mean, site.spec.training.rollout.max_response_tokens
    if mean is None or mean <= most:
        return None
    return Problem(
        ("lengths", "mean"),
        f"{mean:g} is above spec.training.rollout.maxResponseTokens ({most}): lower it, or raise that",
    )


def small_cache(error: CacheTooSmall, assumptions: Assumptions) -> Problem:
    """Which assumption made an engine's cache too small."""
    # A heavy engine of which nothing is said follows from the fast one.
    pool = error.pool if assumptions.engines.heavy is not None else "fast"
    return Problem(
        ("engines", pool, "kvTokens"),
        f"{error.found} is below the longest prompt and response together, {error.needed} tokens: raise it, "
        "or set null for as many as are needed",
    )


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
