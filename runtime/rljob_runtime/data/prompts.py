"""The endless, ordered sequence of a job's prompts.

Guarantees: `prompt(uid)` is a pure function of the data, the seed and the uid; each epoch (uids
[e * rows, (e + 1) * rows)) has every usable row exactly once.
"""

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from rljob_api.data import Data, PromptData
from rljob_api.errors import nearest
from rljob_runtime.data.errors import AnswersMissing, DataError, RewardFieldMissing, listed
from rljob_runtime.data.fingerprint import DataFingerprint
from rljob_runtime.data.lengths import Length, lengths
from rljob_runtime.data.shuffle import permutation
from rljob_runtime.data.sources import PromptText, Row, Source, open_source
from rljob_runtime.data.tokenizer import TextTokenizer
from rljob_runtime.samples import Prompt

_SCAN_ROWS = 1024
"""Rows tokenized at a time when lengths are checked."""
_WHOLE_BELOW = 16 << 20
"""Bytes. A file up to this size is checked whole before a job starts: that takes a few seconds at most."""
_CHECKED_ROWS = 1000
"""Rows that are checked of what is larger, or has no size."""
_LOOKED_AT = 8
"""Rows that `first_prompts` looks at for each prompt that is wanted."""
_DIGEST_BYTES = 16
"""128 bits: enough against collisions by chance, and short in a checkpoint."""


class PlacedText(NamedTuple):
    """A prompt as the model reads it."""

    where: str
    """The file and line, or row, that it stands in."""
    text: str


class PromptSource:
    """The prompt of each uid: a job's data, in its order, epoch after epoch."""

    def __init__(self, data: PromptData, tokenizer: TextTokenizer, seed: int, base: Path) -> None:
        """Opens the data (paths are relative to `base`) and measures every prompt.

        Raises `DataError`, which names the file and line, for anything that is not a prompt and, unless
        they are to be skipped, for prompts above maxPromptTokens; and where the field that is named for the
        answers is in no row.
        """
        self._source = open_source(data, base, seed, tokenizer.letters)
        self._tokenizer = tokenizer
        self._seed = seed
        self._shuffle = _is_shuffled(data)
        self._kept, self.fingerprint = _read_all(self._source, tokenizer, data, seed)
        _check_answers(self._source, data, needed=False, whole=True)
        _check_reward_fields(self._source, data, whole=True)
        self.rows = _count(self._source, self._kept)
        """Prompts of one epoch."""
        self.skipped = len(self._source) - self.rows
        """Rows left out because their prompt is too long."""

    def prompt(self, uid: int) -> Prompt:
        """Prompt number `uid`, from 0."""
        epoch, place = divmod(uid, self.rows)
        if self._shuffle:
            place = int(permutation(self._seed, epoch, self.rows)[place])
        row = place if self._kept is None else int(self._kept[place])
        return _prompt(self._source.row(row), self._tokenizer, uid, epoch, row)

    def texts(self) -> Iterator[PlacedText]:
        """The prompts of one epoch as the model reads them, in order of the data's rows."""
        for row in range(len(self._source)) if self._kept is None else map(int, self._kept):
            yield _placed(self._source, self._tokenizer, row)


def some_texts(data: PromptData, tokenizer: TextTokenizer, seed: int, base: Path) -> Iterator[PlacedText]:
    """The prompts as the model reads them, as far as `check_data` looks at them; too long ones among them."""
    if _is_remote(data, base):
        return
    source, _ = _open_some(data, tokenizer, seed, base)
    for row in range(len(source)):
        yield _placed(source, tokenizer, row)


@dataclass(frozen=True)
class Epoch:
    """The prompts of one epoch."""

    rows: int
    fingerprint: DataFingerprint


def check_data(
    data: PromptData, tokenizer: TextTokenizer, seed: int, base: Path, answers_needed: bool = False
) -> Epoch | None:
    """A check of at most a few seconds, before a job starts: raises `DataError`; `AnswersMissing` where no
    row has an answer, and some must for the reward (`answers_needed`), or because the manifest names their
    field; `RewardFieldMissing`. Returns the epoch where all of it was looked at.

    Of data above 16 MB, and of data sets and generated data, the first 1,000 rows are checked, of smaller
    files all. A data set that is not a local folder is not fetched.
    """
    if _is_remote(data, base):
        return None
    source, small = _open_some(data, tokenizer, seed, base)
    kept, fingerprint = _read_all(source, tokenizer, data, seed)
    whole = len(source) < _CHECKED_ROWS or small
    _check_answers(source, data, answers_needed, whole)
    _check_reward_fields(source, data, whole)
    return Epoch(_count(source, kept), fingerprint) if whole else None


def _open_some(data: PromptData, tokenizer: TextTokenizer, seed: int, base: Path) -> tuple[Source, bool]:
    """The rows that are looked at before a job starts, and whether they are those of a small file, whole."""
    file = data.jsonl or data.parquet
    path = base / file.path if file is not None else None
    small = path is not None and path.is_file() and path.stat().st_size <= _WHOLE_BELOW
    return open_source(data, base, seed, tokenizer.letters, limit=None if small else _CHECKED_ROWS), small


def first_prompts(
    data: PromptData, tokenizer: TextTokenizer, seed: int, base: Path, count: int
) -> list[Prompt]:
    """Prompts of the first rows that are not too long, at most `count`; none of a data set that would have to
    be fetched. Raises `DataError`."""
    if _is_remote(data, base):
        return []
    found: list[Prompt] = []
    source = open_source(data, base, seed, tokenizer.letters, limit=_LOOKED_AT * count)
    for number in range(len(source)):
        row = source.row(number)
        if _length(source, tokenizer, number, data.max_prompt_tokens).tokens <= data.max_prompt_tokens:
            found.append(_prompt(row, tokenizer, number, 0, number))
        if len(found) == count:
            break
    return found


def _is_shuffled(data: PromptData) -> bool:
    return isinstance(data, Data) and data.shuffle


def _is_remote(data: PromptData, base: Path) -> bool:
    return data.hugging_face is not None and not (base / data.hugging_face.name).is_dir()


def _placed(source: Source, tokenizer: TextTokenizer, number: int) -> PlacedText:
    return PlacedText(source.where(number), _render(source.row(number).prompt, tokenizer)[0])


def _prompt(row: Row, tokenizer: TextTokenizer, uid: int, epoch: int, number: int) -> Prompt:
    text, rendered = _render(row.prompt, tokenizer)
    tokens = tokenizer.encode(text, rendered=rendered)
    return Prompt(
        uid=uid, epoch=epoch, row=number, tokens=tokens, text=text, answer=row.answer, fields=row.fields
    )


def _check_answers(source: Source, data: PromptData, needed: bool, whole: bool) -> None:
    # An API server writes the default into an RLJob, so that one is not known to be what a person wants.
    named = data.answer_field != PromptData.model_fields["answer_field"].default
    # Data without answers are right where the reward needs none: only a field that was named must be there.
    if not (needed or named) or any(source.row(n).answer is not None for n in range(len(source))):
        return
    field, there = data.answer_field, source.fields()
    rows = "row" if whole else f"of the first {len(source):,} rows"
    if field in there:
        raise AnswersMissing(f'{source.name}: field "{field}" is null in each {rows}: see data.answerField')
    why = "" if named else ", and the reward compares with an answer: set data.answerField"
    raise AnswersMissing(
        f'{source.name}: no field "{field}" in any {rows}{why}; the rows have {listed(there)}',
        nearest(field, there),
    )


def _check_reward_fields(source: Source, data: PromptData, whole: bool) -> None:
    """Each must be in some row. Raises `RewardFieldMissing`."""
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
        raise RewardFieldMissing(
            f'{source.name}: field "{field}" is absent or null in each {rows}; the rows have {listed(there)}',
            data.reward_fields.index(field),
            nearest(field, [name for name in there if name != field]),
        )


def _digest(data: bytes) -> str:
    return hashlib.blake2b(data, digest_size=_DIGEST_BYTES).hexdigest()


def _read_all(
    source: Source, tokenizer: TextTokenizer, data: PromptData, seed: int
) -> tuple[NDArray[np.int64] | None, DataFingerprint]:
    """The numbers of the usable rows (see `_usable_rows`), and the fingerprint. Raises `DataError`."""
    # The digest is fed by the pass that measures the prompts: the data are read once.
    content = hashlib.blake2b(digest_size=_DIGEST_BYTES)
    kept = _usable_rows(source, tokenizer, data, content.update)
    # All rows are in `content`, also those left out: `used` alone tells of another limit or tokenizer.
    fingerprint = DataFingerprint(
        source.name,
        len(source),
        content.hexdigest(),
        "" if kept is None else _digest(kept.tobytes()),
        f"shuffled with seed {seed}" if _is_shuffled(data) else "in order",
    )
    return kept, fingerprint


def _count(source: Source, kept: NDArray[np.int64] | None) -> int:
    """How many rows are usable."""
    return len(source) if kept is None else len(kept)


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
        length = _length(source, tokenizer, first, limit)
        raise DataError(
            f"{source.where(first)}: the prompt has {length}, above data.maxPromptTokens "
            f"({limit}); {len(long)} of {len(tokens)} rows are too long: raise the limit, or set "
            "data.longPrompts: skip"
        )
    kept = np.flatnonzero(tokens <= limit)
    if len(kept) == 0:
        shortest = _length(source, tokenizer, int(tokens.argmin()), limit)
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
        # Without the further fields: another reward on the same prompts may go on from a checkpoint.
        take(msgspec.msgpack.encode([Row(row.prompt, row.answer) for row in rows]))
        measured = _measure(source, tokenizer, numbers, rows, limit)
        yield np.array([length.tokens for length in measured], dtype=np.int64)


def _length(source: Source, tokenizer: TextTokenizer, number: int, limit: int) -> Length:
    return _measure(source, tokenizer, range(number, number + 1), [source.row(number)], limit)[0]


def _measure(
    source: Source, tokenizer: TextTokenizer, numbers: range, rows: Sequence[Row], limit: int
) -> list[Length]:
    """Lengths of some rows; an error names the row."""
    try:
        return lengths(tokenizer, [_render(row.prompt, tokenizer) for row in rows], limit)
    except DataError:
        # The tokenizer was given many texts at once and does not say which it refused: one by one finds it.
        for number, row in zip(numbers, rows, strict=True):
            try:
                lengths(tokenizer, [_render(row.prompt, tokenizer)], limit)
            except DataError as error:
                raise DataError(f"{source.where(number)}: {error}") from error
        raise


def _render(prompt: PromptText, tokenizer: TextTokenizer) -> tuple[str, bool]:
    """The prompt as text, and whether it has the special tokens in it."""
    if isinstance(prompt, str):
        return prompt, False
    return tokenizer.chat(prompt), True
