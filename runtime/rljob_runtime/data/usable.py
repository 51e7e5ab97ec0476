"""The rows of one source that prompts are made of.

Guarantees: a row is usable where its prompt has tokens, and no more of them than data.maxPromptTokens; a row
that is no prompt, and one that is too long unless such are skipped, is an error that names it.
"""

import hashlib
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from rljob_api.data import PromptData
from rljob_api.errors import nearest
from rljob_runtime.data.errors import AnswersMissing, DataError, RewardFieldMissing, listed
from rljob_runtime.data.lengths import Length, lengths
from rljob_runtime.data.rows import PromptText, Row, Source
from rljob_runtime.data.tokenizer import TextTokenizer

_SCAN_ROWS = 1024
"""Rows tokenized at a time when lengths are checked."""
_DIGEST_BYTES = 16
"""128 bits: enough against collisions by chance, and short in a checkpoint."""


class PlacedText(NamedTuple):
    """What a row asks, by which prompts are compared. A single message of a user is its content."""

    where: str
    """The file and line, or row, that it stands in."""
    text: str
    """Without data.systemPrompt."""
    whole: str
    """With it."""


class UsableRows:
    """The usable rows of a source, by number from 0."""

    def __init__(self, source: Source, tokenizer: TextTokenizer, data: PromptData) -> None:
        """Reads all rows of `source`, once. Raises `DataError`."""
        self.source = source
        self._data = data
        # The digest is fed by the pass that measures the prompts: the data are read once.
        content = hashlib.blake2b(digest_size=_DIGEST_BYTES)
        self._kept = _usable_rows(source, tokenizer, data, content.update)
        if data.system_prompt is not None:
            _check_system_prompt(source, tokenizer, data.system_prompt)
        self.content = content.hexdigest()
        """Digest of the prompts and answers of all rows, usable or not, in order, as hexadecimal digits."""
        self.used = "" if self._kept is None else digest(self._kept.tobytes())
        """Digest of the numbers of the usable rows; empty where all of them are."""

    def __len__(self) -> int:
        return len(self.source) if self._kept is None else len(self._kept)

    def number(self, place: int) -> int:
        """Which row of the source is usable row `place`."""
        return place if self._kept is None else int(self._kept[place])

    def texts(self) -> Iterator[PlacedText]:
        """What the rows ask, in order."""
        for place in range(len(self)):
            yield placed(self.source, self._data, self.number(place))

    def check_fields(self, answers_needed: bool, whole: bool) -> None:
        """Raises `AnswersMissing` where no row has an answer, and some must for the reward
        (`answers_needed`), or because the manifest names their field; `RewardFieldMissing` where no row has a
        field that the reward is to get. `whole`: whether all rows of the data are there."""
        for error in field_errors(self.source, self._data, answers_needed, whole):
            raise error


def field_errors(
    source: Source, data: PromptData, answers_needed: bool, whole: bool
) -> Iterator[AnswersMissing | RewardFieldMissing]:
    """Every field that some row must have, as `UsableRows.check_fields` says, and none has."""
    if (error := _missing_answers(source, data, answers_needed, whole)) is not None:
        yield error
    yield from _missing_reward_fields(source, data, whole)


def check_rows(source: Source) -> None:
    """What can be told of the rows of `source` without a tokenizer. Raises `DataError`."""
    if len(source) == 0:
        raise DataError(f"{source.name}: no prompts in it")
    for number in range(len(source)):
        source.row(number)


def digest(data: bytes) -> str:
    """As hexadecimal digits."""
    return hashlib.blake2b(data, digest_size=_DIGEST_BYTES).hexdigest()


def render(prompt: PromptText, tokenizer: TextTokenizer) -> tuple[str, bool]:
    """The prompt as text, and whether it has the special tokens in it. Raises `DataError`."""
    if isinstance(prompt, str):
        return prompt, False
    return tokenizer.chat(prompt), True


def placed(source: Source, data: PromptData, number: int) -> PlacedText:
    """What row `number` of `data` asks."""
    prompt = source.row(number).prompt
    # It is the same before every prompt, so that nothing is asked in it alone; a system message that a row
    # has itself may be what tells it from another.
    own = prompt if data.system_prompt is None else prompt[1:]
    return PlacedText(source.where(number), _plain(own), _plain(prompt))


def _plain(prompt: PromptText) -> str:
    if isinstance(prompt, str):
        return prompt.strip()
    if [message["role"] for message in prompt] == ["user"]:
        return prompt[0]["content"].strip()
    return "\n".join(f"{message['role']}: {message['content'].strip()}" for message in prompt)


def length_of(source: Source, tokenizer: TextTokenizer, number: int, limit: int) -> Length:
    """How long the prompt of row `number` is; beyond `limit` not exactly. Raises `DataError`."""
    return _measure(source, tokenizer, range(number, number + 1), [source.row(number)], limit)[0]


def _check_system_prompt(source: Source, tokenizer: TextTokenizer, system_prompt: str) -> None:
    # Some templates take no notice of system messages, and say nothing. Others strip them.
    if system_prompt.strip() not in render(source.row(0).prompt, tokenizer)[0]:
        raise DataError(
            "the tokenizer's chat template leaves data.systemPrompt out: put it into the prompts, or use a "
            "template that has system messages"
        )


def _missing_answers(source: Source, data: PromptData, needed: bool, whole: bool) -> AnswersMissing | None:
    # An API server writes the default into an RLJob, so that one is not known to be what a person wants.
    named = data.answer_field != PromptData.model_fields["answer_field"].default
    # Data without answers are right where the reward needs none: only a field that was named must be there.
    if not (needed or named) or any(source.row(n).answer is not None for n in range(len(source))):
        return None
    field, there = data.answer_field, source.fields()
    rows = "row" if whole else f"of the first {len(source):,} rows"
    if field in there:
        return AnswersMissing(f'{source.name}: field "{field}" is null in each {rows}: see data.answerField')
    why = "" if named else ", and the reward compares with an answer: set data.answerField"
    return AnswersMissing(
        f'{source.name}: no field "{field}" in any {rows}{why}; the rows have {listed(there)}',
        nearest(field, there),
    )


def _missing_reward_fields(source: Source, data: PromptData, whole: bool) -> Iterator[RewardFieldMissing]:
    missing = dict.fromkeys(data.reward_fields)
    for number in range(len(source)):
        if not missing:
            return
        for name, value in source.row(number).fields.items():
            if value is not None:
                missing.pop(name, None)
    for field in missing:
        there = source.fields()
        rows = "row" if whole else f"of the first {len(source):,} rows"
        yield RewardFieldMissing(
            f'{source.name}: field "{field}" is absent or null in each {rows}; the rows have {listed(there)}',
            data.reward_fields.index(field),
            nearest(field, [name for name in there if name != field]),
        )


def _usable_rows(
    source: Source, tokenizer: TextTokenizer, data: PromptData, take: Callable[[bytes], object]
) -> NDArray[np.int64] | None:
    """Numbers of the rows whose prompt is not too long, ascending, shape (rows,); None where that is all of
    them. `take` is given the content of all rows, in order. Raises `DataError`."""
    if len(source) == 0:
        raise DataError(f"{source.name}: no prompts in it")
    limit = data.max_prompt_tokens
    tokens = np.concatenate(list(_lengths(source, tokenizer, limit, take)))
    empty = np.flatnonzero(tokens == 0)
    if len(empty) > 0:
        raise DataError(
            f"{source.where(int(empty[0]))}: the prompt has no tokens; {len(empty)} of {len(tokens)} rows "
            "are like that: take them out of the data"
        )
    long = np.flatnonzero(tokens > limit)
    if len(long) == 0:
        return None
    if data.long_prompts == "error":
        first = int(long[0])
        # Measured again: the array holds numbers alone, and the message tells "more than" from "exactly".
        length = length_of(source, tokenizer, first, limit)
        raise DataError(
            f"{source.where(first)}: the prompt has {length}, above data.maxPromptTokens "
            f"({limit}); {len(long)} of {len(tokens)} rows are too long: raise the limit, or set "
            "data.longPrompts: skip"
        )
    kept = np.flatnonzero(tokens <= limit)
    if len(kept) == 0:
        shortest = length_of(source, tokenizer, int(tokens.argmin()), limit)
        raise DataError(
            f"{source.name}: all {len(tokens)} prompts are above data.maxPromptTokens ({limit}); the "
            f"shortest has {shortest}: raise the limit"
        )
    return kept


def _lengths(
    source: Source, tokenizer: TextTokenizer, limit: int, take: Callable[[bytes], object]
) -> Iterator[NDArray[np.int64]]:
    """Tokens of the prompts of `_SCAN_ROWS` rows at a time, each of shape (rows,)."""
    for start in range(0, len(source), _SCAN_ROWS):
        numbers = range(start, min(start + _SCAN_ROWS, len(source)))
        rows = [source.row(number) for number in numbers]
        take(msgspec.msgpack.encode([row.recorded for row in rows]))
        measured = _measure(source, tokenizer, numbers, rows, limit)
        yield np.array([length.tokens for length in measured], dtype=np.int64)


def _measure(
    source: Source, tokenizer: TextTokenizer, numbers: range, rows: Sequence[Row], limit: int
) -> list[Length]:
    """Lengths of some rows; an error names the row."""
    try:
        return lengths(tokenizer, [render(row.prompt, tokenizer) for row in rows], limit)
    except DataError:
        # The tokenizer was given many texts at once and does not say which it refused: one by one finds it.
        for number, row in zip(numbers, rows, strict=True):
            try:
                lengths(tokenizer, [render(row.prompt, tokenizer)], limit)
            except DataError as error:
                raise DataError(f"{source.where(number)}: {error}") from error
        raise
