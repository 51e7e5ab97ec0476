"""What a job's prompts are, in a few bytes: recorded in each checkpoint, compared when the job goes on.

Guarantees: without a difference every uid stands for the same prompt and the same answer as when it was
recorded, up to collisions of a 128-bit digest; a difference is told by what changed. A file that was moved or
renamed is the same data. Pure.
"""

import msgspec

_OR_ANEW = "or begin anew with --restart"
SEVERAL = "of the sources"
"""Stands in the order of prompts that come from several sources."""
BY_DIFFICULTY = "by difficulty"
"""Stands in the order of prompts that a curriculum passes over or not."""


class DataFingerprint(msgspec.Struct, frozen=True):
    """What identifies a job's prompts and their order; `PromptSource` makes it."""

    source: str
    """File, folder or data set, as people know it."""
    rows: int
    """Rows in it."""
    content: str
    """Digest of the prompts and answers of all rows, in order, as hexadecimal digits."""
    used: str
    """Digest of the numbers of the rows that are not left out for their length; empty where none is."""
    order: str
    """How rows become uids: "in order", "shuffled with seed 3", or "in order, 30 + 10 of the sources in an
    epoch"."""


def difference(recorded: DataFingerprint, now: DataFingerprint) -> str | None:
    """Why a job cannot go on with the data as it is now, and what to do; None where it can."""
    # Content first: other rows commonly change which ones are too long, and are the cause to name.
    if recorded.content != now.content:
        counts = f"{recorded.rows:,} rows then, {now.rows:,} now"
        what = counts if recorded.rows != now.rows else f"other content in its {now.rows:,} rows"
        return (
            f"{now.source} is not the data that the run began with ({what}): put the earlier data back to go "
            f"on with --resume, {_OR_ANEW}"
        )
    if recorded.order != now.order:
        return (
            f"the prompts of {now.source} come {now.order}, and came {recorded.order} when the run began: "
            f"set {_ordering(recorded, now)} back to go on with --resume, {_OR_ANEW}"
        )
    if recorded.used != now.used:
        return (
            f"other prompts of {now.source} are left out for their length than when the run began: set "
            f"data.maxPromptTokens and the tokenizer back to go on with --resume, {_OR_ANEW}"
        )
    return None


def _ordering(recorded: DataFingerprint, now: DataFingerprint) -> str:
    """The fields that order prompts, as far as the two orders have to do with them."""
    fields = ["training.seed", "data.shuffle"]
    if SEVERAL in recorded.order + now.order:
        fields.append("data.sources")
    if (BY_DIFFICULTY in recorded.order) != (BY_DIFFICULTY in now.order):
        fields.append("data.curriculum")
    return f"{', '.join(fields[:-1])} and {fields[-1]}"
