"""Lengths of another run that a job's responses are to have, so that runs are compared on identical work.

Guarantees: lengths are taken only from a trace that fits the job: of its prompts, as many responses to a
prompt, none too long, and of every prompt that its schedule trains. Pure but for reading the file.
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from rljob_api.training import Training
from rljob_runtime.data.errors import not_expanded
from rljob_runtime.data.fingerprint import DataFingerprint
from rljob_runtime.data.length_trace import LengthTrace, LengthTraceError, read_length_trace


@dataclass(frozen=True, eq=False)
class ForcedLengths:
    """The length of each response."""

    tokens: NDArray[np.int32]
    """Shape (prompts, samples)."""

    def of(self, uid: int, index: int) -> int:
        """Tokens of response `index` of group `uid`. Beyond the trace it repeats: a job may need more groups
        than its schedule trains, where it refuses some."""
        return int(self.tokens[uid % len(self.tokens), index])


def forced_lengths(
    training: Training, base: Path, groups: int | None, data: DataFingerprint | None
) -> ForcedLengths | None:
    """The lengths that the RLJob names, relative to `base`; None where it names none. `groups`: how many the
    job trains, and `data`: its prompts, where they are known. Raises `LengthTraceError`."""
    if training.rollout.forced_lengths is None:
        return None
    path = base / training.rollout.forced_lengths
    if not path.exists() and (advice := not_expanded(path)):
        raise LengthTraceError(f"{path}: no such file{advice}")
    trace = read_length_trace(path)
    why = misfit(trace, training, groups, data)
    if why is not None:
        raise LengthTraceError(f"{path} {why}")
    return ForcedLengths(trace.tokens[: trace.covered])


def misfit(
    trace: LengthTrace, training: Training, groups: int | None, data: DataFingerprint | None
) -> str | None:
    """Why a job cannot have the lengths of `trace`, and what to do; None where it can."""
    header, covered, rollout = trace.header, trace.covered, training.rollout
    if header.data is not None and data is not None:
        what = _other_data(header.data, data)
        if what is not None:
            return f"is of other data than this job's: {what}; name a trace of this data"
    if header.samples_per_prompt != rollout.samples_per_prompt:
        return (
            f"has {header.samples_per_prompt} responses to a prompt, and rollout.samplesPerPrompt is "
            f"{rollout.samples_per_prompt}: set it to {header.samples_per_prompt}, or name another trace"
        )
    if covered == 0 or (groups is not None and covered < groups):
        needed = "at least 1" if groups is None else f"{groups:,}"
        more = f" without a gap, of {len(trace.uids):,}" if len(trace.uids) > covered else ""
        more += _left_out(trace)
        longer = "name a trace of a longer run, or "
        if header.removed:
            more += f" (those of {header.removed:,} later ones were taken out when the file grew large)"
            # A longer run would have no more of them.
            longer = ""
        return (
            f"covers the first {covered:,} prompts{more}, and the job trains {needed}: {longer}lower "
            "schedule.totalSteps or schedule.epochs"
        )
    tokens = trace.tokens[:covered]
    if tokens.max() > rollout.max_response_tokens:
        uid, index = np.unravel_index(int(tokens.argmax()), tokens.shape)
        return (
            f"has a response of {tokens.max():,} tokens (line {trace.lines[uid, index]}: number {index} to "
            f"prompt {uid}), above rollout.maxResponseTokens ({rollout.max_response_tokens:,}): raise it, or "
            "name another trace"
        )
    prompts, longest = trace.prompt_tokens[:covered], training.data.max_prompt_tokens
    if prompts.max() > longest:
        uid = prompts.argmax()
        return (
            f"has a prompt of {prompts.max():,} tokens (line {trace.lines[uid, 0]}: prompt {uid}), above "
            f"data.maxPromptTokens ({longest:,}), which no prompt of this job can have: name a trace of its "
            "data"
        )
    return None


def _left_out(trace: LengthTrace) -> str:
    """Why there may be gaps."""
    found = []
    if trace.incomplete == 1:
        found.append(f"prompt {trace.first_incomplete} lacks a response")
    elif trace.incomplete:
        found.append(f"{trace.incomplete:,} more lack a response, prompt {trace.first_incomplete} first")
    if trace.unreadable:
        found.append(f"it is without {trace.left_out}")
    return f" ({'; '.join(found)})" if found else ""


def _other_data(recorded: DataFingerprint, now: DataFingerprint) -> str | None:
    if recorded.content != now.content:
        return (
            f"it was recorded with {recorded.rows:,} rows of {recorded.source}, and the {now.rows:,} rows of "
            f"{now.source} have other prompts or answers"
        )
    if recorded.order != now.order:
        return f"its prompts came {recorded.order}, and this job's come {now.order}"
    if recorded.used != now.used:
        return "other prompts were left out for their length"
    return None
