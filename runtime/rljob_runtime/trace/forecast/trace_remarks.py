"""What people are told of a length trace that lacks prompts, or has few of them.

Guarantees: says how much is missing and what that means for figures; says nothing of a trace that has a whole
prompt for each one that is simulated. Pure.
"""

from rljob_runtime.data.fingerprint import DataFingerprint
from rljob_runtime.data.length_trace import LengthTrace


def remarks(trace: LengthTrace, steps: int, groups_per_step: int, seeds: int, longest: int) -> str:
    """On a simulation of so many steps and seeds with these lengths, of which there are some, of a job whose
    responses have at most `longest` tokens; "" where there is nothing to say."""
    found = [*_cut_off(trace, longest), *_incomplete(trace)]
    found += _repeated(len(trace.uids), steps, groups_per_step, seeds)
    return f"Recorded lengths: {' '.join(found)}" if found else ""


def not_compared(trace: LengthTrace, data: DataFingerprint | None) -> str:
    """What is told where nobody compared a trace's prompts with those of the job, `data`, which are not
    known as a whole; "" where they were compared, or the trace fits any."""
    known = trace.header.data
    if known is None or data is not None:
        return ""
    return (
        f"Recorded prompts: {known.rows:,} rows of {known.source}. They were not compared with this job's, "
        "which are not all read here: lengths of other prompts would say nothing of it."
    )


def _cut_off(trace: LengthTrace, longest: int) -> list[str]:
    """A job with a higher limit than that of the run, which cut responses off."""
    cap = trace.header.max_response_tokens
    count, total = round(cut_off(trace) * trace.tokens.size), trace.tokens.size
    if longest <= cap or not count:
        return []
    were = "was" if count == 1 else "were"
    return [
        f"{count:,} of {total:,} responses {were} cut off at {cap:,} tokens, the run's maxResponseTokens, "
        f"and count as complete; with this job's {longest:,} they may be longer than is simulated."
    ]


def _incomplete(trace: LengthTrace) -> list[str]:
    if not trace.incomplete:
        return []
    total = len(trace.uids) + trace.incomplete
    lack, are = ("lacks", "is") if trace.incomplete == 1 else ("lack", "are")
    return [
        f"{trace.incomplete:,} of {total:,} prompts {lack} a response and {are} left out"
        f"{_first(trace)}; what a run has under way when it ends is mostly long, so that responses may be "
        "longer than is simulated."
    ]


def _first(trace: LengthTrace) -> str:
    return f", prompt {trace.first_incomplete} first" if trace.incomplete > 1 else ""


def _repeated(count: int, steps: int, groups_per_step: int, seeds: int) -> list[str]:
    needed = steps * groups_per_step
    if count >= needed:
        return []
    each = f"each up to {-(-needed // count)} times" if count > 1 else f"{needed} times"
    found = [
        f"{_prompts(count)} for the {needed:,} of {steps} step{'s' * (steps > 1)}, {each}; a policy that "
        "remembers the lengths of prompts knows them from the second time on."
    ]
    if count < groups_per_step and steps > 1:
        found.append("That is less than one step has: steps hardly differ.")
    if seeds > 1:
        found.append(
            "All seeds are the same."
            if count == 1
            else "Seeds differ only in which prompt comes first: other prompts may deviate more."
        )
    if (whole := count // groups_per_step) >= 1:
        found.append(f"--steps {whole} repeats none.")
    return found


def _prompts(count: int) -> str:
    return "1 prompt stands" if count == 1 else f"{count:,} prompts stand"


def fit_note(file: str, trace: LengthTrace | None) -> str:
    """What the assumed lengths rest on that `rljob trace fit` has from the trace in `file`; None: it cannot
    be read."""
    if trace is None:
        return f"lengths: {file} cannot be read; defaults"
    missing = []
    if trace.header.removed:
        missing.append(f"{trace.header.removed:,} that are not in the file any more")
    if trace.incomplete:
        missing.append(f"{trace.incomplete:,} that lack a response (mostly long ones)")
    if trace.unreadable:
        missing.append(trace.left_out)
    without = f", without {', '.join(missing)}" if missing else ""
    count = len(trace.uids)
    found = f"lengths: {count:,} prompt{'s' * (count != 1)}{without}"
    if not enough(trace):
        return f"{found}: too few to fit; defaults"
    return f"{found}{_at_cap(trace)}; --trace {file} takes them as they were"


def _at_cap(trace: LengthTrace) -> str:
    share, cap = cut_off(trace), trace.header.max_response_tokens
    return f", {share:.0%} of responses cut off at {cap:,} tokens" if share else ""


def cut_off(trace: LengthTrace) -> float:
    """Share of the responses that are as long as the run allowed, and might have been longer."""
    return float((trace.tokens >= trace.header.max_response_tokens).mean())


def enough(trace: LengthTrace) -> bool:
    """Whether it tells how lengths differ from prompt to prompt."""
    return len(trace.uids) > 1
