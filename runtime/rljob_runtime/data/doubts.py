"""What may be wrong with rows that can be used: told before a job starts, and no reason to refuse it.

Pure: from the rows that were looked at.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from rljob_runtime.data.rows import Source


@dataclass(frozen=True)
class DataDoubt:
    """One thing to look at."""

    words: str
    """One line without a full stop at the end."""
    field: str | None = None
    """The field that it is about, by its name in YAML; None: where the rows are."""
    source: int | None = None
    """Which of data.sources it is about, from 0; None where there are none."""


def unanswered(source: Source, whole: bool) -> Iterator[DataDoubt]:
    """Rows without an answer, where the reward raises for them. `whole`: whether all rows are there."""
    lacking = [number for number in range(len(source)) if not (source.row(number).answer or "").strip()]
    if lacking:
        yield DataDoubt(
            f"{of_rows(len(lacking), source, whole)} no answer (null, or empty text); the first is "
            f"{source.where(lacking[0])}. math_answer fails for each response to them, which is then left "
            "out: take these rows out of the data, or give them an answer",
            "answerField",
        )


def unread(source: Source, whole: bool) -> Iterator[DataDoubt]:
    """Messages with more than a role and a content."""
    found: dict[str, list[int]] = {}
    for number in range(len(source)):
        for key in source.left_out(number):
            found.setdefault(key, []).append(number)
    if found:
        said = ", ".join(f"{key} in {len(rows):,}" for key, rows in found.items())
        rows = set().union(*found.values())
        yield DataDoubt(
            f"{of_rows(len(rows), source, whole)} messages with more than role and content ({said}), which "
            f"prompts are made without; the first is {source.where(min(rows))}. Write into content what the "
            "model is to read"
        )


def of_rows(count: int, source: Source, whole: bool) -> str:
    """`3 of 6 rows have`, or `1 of the first 1,000 rows has`."""
    rows = (
        f"{len(source):,} row{'s' if len(source) > 1 else ''}" if whole else f"the first {len(source):,} rows"
    )
    return f"{count:,} of {rows} {'has' if count == 1 else 'have'}"
