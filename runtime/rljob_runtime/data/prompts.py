"""The endless, ordered sequence of a job's prompts.

Guarantees: the prompt at a position is a pure function of the data, the seed and the position; each epoch
(positions [e * rows, (e + 1) * rows)) has every usable row exactly once, and of several sources with weights
as many prompts of each as its share (`mixing.py`).
"""

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path

from rljob_api.data import Data, PromptData
from rljob_runtime.data.doubts import DataDoubt, unanswered, unread
from rljob_runtime.data.errors import (
    AnswersMissing,
    DataError,
    PromptMissing,
    RewardFieldMissing,
    not_expanded,
)
from rljob_runtime.data.fingerprint import BY_DIFFICULTY, SEVERAL, DataFingerprint
from rljob_runtime.data.mixing import Mix, Place
from rljob_runtime.data.rows import Source
from rljob_runtime.data.shuffle import Shuffle, mix
from rljob_runtime.data.sources import open_source
from rljob_runtime.data.tables import without_effect
from rljob_runtime.data.tokenizer import FolderTokenizer, TextTokenizer
from rljob_runtime.data.usable import (
    PlacedText,
    UsableRows,
    check_rows,
    digest,
    field_errors,
    length_of,
    placed,
    render,
)
from rljob_runtime.samples import Prompt

_WHOLE_BELOW = 16 << 20
"""Bytes. A file up to this size is checked whole before a job starts: that takes a few seconds at most."""
_CHECKED_ROWS = 1000
"""Rows that are checked of what is larger, or has no size."""
_COMPARED_ROWS = 200_000
"""Generated prompts that evaluations are compared with: made in two seconds."""
_LOOKED_AT = 8
"""Rows that `first_prompts` looks at for each prompt that is wanted."""


class PromptSource:
    """The prompts of a job's data, in their order, epoch after epoch."""

    def __init__(self, data: PromptData, tokenizer: TextTokenizer, seed: int, base: Path) -> None:
        """Opens the data (paths are relative to `base`) and measures every prompt.

        Raises `DataError`, which names the file and line, for anything that is not a prompt and, unless
        they are to be skipped, for prompts above maxPromptTokens; and where the field that is named for the
        answers is in no row.
        """
        self._tokenizer = tokenizer
        self.names = _names(data)
        """Names of the sources that are mixed; empty where the data are not several sources."""
        seeds = _seeds(data, seed)
        self._parts: list[UsableRows] = []
        for index, (part, own) in enumerate(zip(_parts(data), seeds, strict=True)):
            with _about(data, index):
                rows = UsableRows(open_source(part, base, own, tokenizer.letters), tokenizer, part)
                rows.check_fields(answers_needed=False, whole=True)
            self._parts.append(rows)
        self._mix = Mix(list(map(len, self._parts)), _weights(data))
        shuffled = _is_shuffled(data)
        self._orders = [
            Shuffle(own, len(part)) if shuffled else None
            for own, part in zip(seeds, self._parts, strict=True)
        ]
        self.fingerprint = _fingerprint(self._parts, self._mix, data, seed)
        self.rows = self._mix.rows
        """Prompts of one epoch."""
        self.usable = sum(map(len, self._parts))
        """Different rows that prompts are made of."""
        self.skipped = sum(len(part.source) - len(part) for part in self._parts)
        """Rows left out because their prompt is too long."""
        # Rows are numbered through all sources.
        self._first_row = [sum(len(each.source) for each in self._parts[:n]) for n in range(len(self._parts))]

    def prompt(self, uid: int, position: int | None = None) -> Prompt:
        """The prompt at `position`, from 0, for group `uid`; without it, at `uid`."""
        position = uid if position is None else position
        part, number = self._located(position)
        rows = self._parts[part].source.row(number)
        text, rendered = render(rows.prompt, self._tokenizer)
        return Prompt(
            uid=uid,
            epoch=position // self.rows,
            row=self._first_row[part] + number,
            tokens=self._tokenizer.encode(text, rendered=rendered),
            text=text,
            answer=rows.answer,
            fields=rows.fields,
            source=self.names[part] if self.names else "",
        )

    def row(self, position: int) -> int:
        """`Prompt.row` of the prompt at a position, from 0."""
        part, number = self._located(position)
        return self._first_row[part] + number

    def source_of(self, row: int) -> str:
        """Name of the source that has row `row` (`Prompt.row`); empty where there is one alone."""
        if not self.names:
            return ""
        return self.names[bisect_right(self._first_row, row) - 1]

    def texts(self) -> Iterator[PlacedText]:
        """What all prompts ask, each once, in order of the data's rows."""
        for part in self._parts:
            yield from part.texts()

    def _located(self, position: int) -> tuple[int, int]:
        """Which source has the prompt at a position, and in which of its rows."""
        # Without several sources, the order of the only one.
        at = self._mix.at(position) if len(self._parts) > 1 else Place(0, *divmod(position, self.rows))
        order = self._orders[at.source]
        place = at.place if order is None else order.row(at.epoch, at.place)
        return at.source, self._parts[at.source].number(place)


def some_texts(data: PromptData, letters: str, seed: int, base: Path) -> Iterator[PlacedText]:
    """What the prompts ask, as far as `check_data` looks at them, and of generated ones the first 200,000;
    too long ones among them. `letters`: the tokenizer's. Raises `DataError`."""
    for part, own in zip(_parts(data), _seeds(data, seed), strict=True):
        if not _is_remote(part, base):
            source, _ = _open_some(part, letters, own, base, generated=_COMPARED_ROWS)
            for row in range(len(source)):
                yield placed(source, part, row)


def generated_fingerprint(
    data: PromptData, tokenizer: TextTokenizer, seed: int, base: Path
) -> DataFingerprint | None:
    """Of prompts that are all generated, up to 200,000 of them; None of others. Raises `DataError`."""
    generated = [part.generated for part in _parts(data)]
    if sum(_COMPARED_ROWS if each is None else each.rows for each in generated) > _COMPARED_ROWS:
        return None
    if any(each is None for each in generated):
        return None
    return PromptSource(data, tokenizer, seed, base).fingerprint


@dataclass(frozen=True)
class Epoch:
    """The prompts of one epoch."""

    rows: int
    fingerprint: DataFingerprint


@dataclass(frozen=True)
class CheckedData:
    """What `check_data` found."""

    errors: list[DataError]
    """Everything that is wrong with any source, of its rows the first that is."""
    epoch: Epoch | None
    """None where not all of it was looked at, or something is wrong."""
    doubts: tuple[DataDoubt, ...] = ()
    """What may be wrong with rows that can be used."""


def check_data(
    data: PromptData, tokenizer: TextTokenizer | None, seed: int, base: Path, answers_needed: bool = False
) -> CheckedData:
    """A check of at most a few seconds, before a job starts. Among the errors are `AnswersMissing` where no
    row has an answer, and some must for the reward (`answers_needed`), or because the manifest names their
    field; and `RewardFieldMissing`. `tokenizer`: None where there is none, and prompts cannot be measured.

    Of data above 16 MB, and of data sets and generated data, the first 1,000 rows are checked, of smaller
    files all. A data set that is not a local folder is not fetched.
    """
    looked_at: list[UsableRows | None] = []
    errors: list[DataError] = []
    doubts: list[DataDoubt] = []
    for index, (part, own) in enumerate(zip(_parts(data), _seeds(data, seed), strict=True)):
        if part.hugging_face is not None and _is_remote(part, base):
            looked_at.append(None)
            if advice := not_expanded(Path(name := part.hugging_face.name)):
                error = DataError(f"no folder {name}{advice}")
                error.source = index if _names(data) else None
                errors.append(error)
            continue
        rows, wrong, doubtful = _look_at(part, tokenizer, own, base, answers_needed)
        looked_at.append(rows)
        place = index if _names(data) else None
        for error in wrong:
            error.source = place
        errors += wrong
        doubts += (replace(doubt, source=place) for doubt in doubtful)
    whole = [rows for rows in looked_at if rows is not None]
    if errors or len(whole) < len(looked_at):
        return CheckedData(errors, None, tuple(doubts))
    order = Mix(list(map(len, whole)), _weights(data))
    return CheckedData([], Epoch(order.rows, _fingerprint(whole, order, data, seed)), tuple(doubts))


def _look_at(
    data: PromptData, tokenizer: TextTokenizer | None, seed: int, base: Path, answers_needed: bool
) -> tuple[UsableRows | None, list[DataError], list[DataDoubt]]:
    """The rows of one source, None where not all of them could be looked at, all that is wrong, and what may
    be, which is looked for where nothing is."""
    letters = tokenizer.letters if tokenizer is not None else FolderTokenizer.letters
    try:
        source, small = _open_some(data, letters, seed, base)
    except PromptMissing as error:
        return None, [error, *_other_names(data, error.there, seed, base, answers_needed)], []
    except DataError as error:
        return None, [error], []
    rows, errors = None, list[DataError]()
    try:
        rows = UsableRows(source, tokenizer, data) if tokenizer is not None else None
    except DataError as error:
        errors.append(error)
    try:
        if rows is None:
            check_rows(source)
    except DataError as error:
        # Most often what was found already, which then is told once.
        return None, [*errors, *([error] if str(error) not in map(str, errors) else [])], []
    whole = len(source) < _CHECKED_ROWS or small
    errors += field_errors(source, data, answers_needed, whole)
    doubts = list[DataDoubt]()
    if not errors:
        doubts += without_effect(data.hugging_face, base) if data.hugging_face is not None else ()
        doubts += unread(source, whole)
        doubts += unanswered(source, whole) if answers_needed else ()
    return rows if whole else None, errors, doubts


def _other_names(
    data: PromptData, there: Sequence[str], seed: int, base: Path, answers_needed: bool
) -> list[AnswersMissing | RewardFieldMissing]:
    """What is wrong with the names of the other fields of a file, where the one of the prompts is not among
    those that are `there`: looked at with whichever of them could be prompts."""
    for name in there:
        renamed = data.model_copy(update={"prompt_field": name})
        with suppress(DataError):
            source, small = _open_some(renamed, FolderTokenizer.letters, seed, base)
            return list(field_errors(source, data, answers_needed, len(source) < _CHECKED_ROWS or small))
    return []


def first_prompts(
    data: PromptData, tokenizer: TextTokenizer, seed: int, base: Path, count: int
) -> list[Prompt]:
    """Prompts of the first rows that are not too long, at most `count` of each source; none of a data set
    that would have to be fetched. Raises `DataError`."""
    found: list[Prompt] = []
    names = _names(data) or ("",)
    for part, own, name in zip(_parts(data), _seeds(data, seed), names, strict=True):
        if not _is_remote(part, base):
            found += _first_of(part, tokenizer, own, base, count, name)
    return found


def _first_of(
    data: PromptData, tokenizer: TextTokenizer, seed: int, base: Path, count: int, name: str
) -> list[Prompt]:
    found: list[Prompt] = []
    source = open_source(data, base, seed, tokenizer.letters, limit=_LOOKED_AT * count)
    for number in range(len(source)):
        row = source.row(number)
        if length_of(source, tokenizer, number, data.max_prompt_tokens).tokens <= data.max_prompt_tokens:
            text, rendered = render(row.prompt, tokenizer)
            tokens = tokenizer.encode(text, rendered=rendered)
            found.append(Prompt(number, 0, number, tokens, text, row.answer, row.fields, name))
        if len(found) == count:
            break
    return found


def _open_some(
    data: PromptData, letters: str, seed: int, base: Path, generated: int = _CHECKED_ROWS
) -> tuple[Source, bool]:
    """The rows that are looked at before a job starts, at most `generated` of a generated task, and whether
    they are those of a small file, whole."""
    file = data.jsonl or data.parquet
    path = base / file.path if file is not None else None
    small = path is not None and path.is_file() and path.stat().st_size <= _WHOLE_BELOW
    rows = _CHECKED_ROWS if data.generated is None else generated
    return open_source(data, base, seed, letters, limit=None if small else rows), small


def _parts(data: PromptData) -> tuple[PromptData, ...]:
    return data.parts() if isinstance(data, Data) else (data,)


def _names(data: PromptData) -> tuple[str, ...]:
    several = data.sources if isinstance(data, Data) else None
    return tuple(each.name for each in several or ())


def _weights(data: PromptData) -> Sequence[float] | None:
    several = data.sources if isinstance(data, Data) else None
    weights = [each.weight for each in several or () if each.weight is not None]
    # All of them have one, or none (a rule of `Data`).
    return weights or None


def _seeds(data: PromptData, seed: int) -> list[int]:
    """A seed for each source: two of the same size would come in the same order."""
    several = data.sources if isinstance(data, Data) else None
    return [seed] if several is None else [mix(seed, index) for index in range(len(several))]


def _is_shuffled(data: PromptData) -> bool:
    return isinstance(data, Data) and data.shuffle


def _is_remote(data: PromptData, base: Path) -> bool:
    return data.hugging_face is not None and not (base / data.hugging_face.name).is_dir()


@contextmanager
def _about(data: PromptData, index: int) -> Iterator[None]:
    """Errors about data say which of several sources they are about."""
    try:
        yield
    except DataError as error:
        error.source = index if _names(data) else None
        raise


def _fingerprint(parts: Sequence[UsableRows], order: Mix, data: PromptData, seed: int) -> DataFingerprint:
    said = f"shuffled with seed {seed}" if _is_shuffled(data) else "in order"
    if _names(data):
        said += f", {' + '.join(map(str, order.quotas))} {SEVERAL} in an epoch"
    if isinstance(data, Data) and data.curriculum is not None:
        said += f", {BY_DIFFICULTY}"
    if len(parts) == 1:
        content, used = parts[0].content, parts[0].used
    else:
        content = digest(" ".join(part.content for part in parts).encode())
        # None is left out of any, or which of each.
        every = [part.used for part in parts]
        used = digest(" ".join(every).encode()) if any(every) else ""
    return DataFingerprint(
        " + ".join(part.source.name for part in parts), sum(len(part.source) for part in parts),
        content, used, said,
    )  # fmt: skip
