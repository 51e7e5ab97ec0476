"""Rows of prompts: JSON Lines, parquet, Hugging Face data sets, built-in tasks.

Guarantees: `len(source)` and `source.row(i)` never change during a run; opening a source reads and checks
its structure, and what is wrong is named by file and line (or row). Memory per row is a few bytes, except
for parquet files, whose two columns are held.
"""

import json
from array import array
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import msgspec

from rljob_api.data import GeneratedData, HuggingFaceData, PromptData
from rljob_runtime.data.errors import DataError, missing_name, one_line
from rljob_runtime.data.shuffle import mix

_NAMED_ROWS = 100
"""Rows that are looked at to name the fields that there are."""

PromptText = str | list[dict[str, str]]
"""A prompt as the data has it: text, or chat messages."""


class Row(msgspec.Struct, frozen=True, omit_defaults=True):
    """One row of the data. Data are recognised by its encoding, in which a default has no entry."""

    prompt: PromptText
    answer: str | None
    fields: dict[str, Any] = {}
    """Further fields for the reward, by the names in data.rewardFields; None where the row lacks one."""


class FieldNames(NamedTuple):
    """Which fields of a record are read."""

    prompt: str
    answer: str
    further: tuple[str, ...] = ()


def field_names(data: PromptData) -> FieldNames:
    """As the RLJob names them."""
    return FieldNames(data.prompt_field, data.answer_field, tuple(dict.fromkeys(data.reward_fields)))


class Source(Protocol):
    """Rows by number, from 0."""

    name: str
    """The file, folder or data set."""

    def __len__(self) -> int: ...

    def row(self, index: int) -> Row:
        """Raises `DataError` for a row that is no prompt."""
        ...

    def where(self, index: int) -> str:
        """How people find the row: `file:line` or `file row n`."""
        ...

    def fields(self) -> list[str]:
        """Names of the fields that the first rows have, `field.inner` for those in an object."""
        ...


class JsonlSource:
    """A file with one JSON object per line; blank lines count as lines but are no rows."""

    def __init__(self, path: Path, fields: FieldNames, limit: int | None = None) -> None:
        """Reads the whole file once, checks each line, and remembers where lines begin. With `limit`, no
        more rows than that."""
        self.name = str(path)
        self._fields = fields
        # Eight bytes for each row and list, not a Python object: data sets have millions of rows.
        self._starts = array("q")
        self._lines = array("q")
        try:
            self._file = path.open("rb")
        except OSError as error:
            raise DataError(f"{path}: {error.strerror}") from error
        try:
            self._index(limit)
        except BaseException:
            self._file.close()
            raise

    def _index(self, limit: int | None) -> None:
        position = 0
        for number, line in enumerate(self._file, start=1):
            if line.strip():
                self._starts.append(position)
                self._lines.append(number)
                self._parse(line, f"{self.name}:{number}")
            position += len(line)
            if len(self._starts) == limit:
                return

    def __len__(self) -> int:
        return len(self._starts)

    def where(self, index: int) -> str:
        return f"{self.name}:{self._lines[index]}"

    def row(self, index: int) -> Row:
        self._file.seek(self._starts[index])
        return self._parse(self._file.readline(), self.where(index))

    def fields(self) -> list[str]:
        found: dict[str, None] = {}
        for index in range(min(len(self), _NAMED_ROWS)):
            self._file.seek(self._starts[index])
            found |= dict.fromkeys(_names(self._decode(self._file.readline(), self.where(index))))
        return list(found)

    def _parse(self, line: bytes, where: str) -> Row:
        return to_row(self._decode(line, where), self._fields, where)

    def _decode(self, line: bytes, where: str) -> dict[str, Any]:
        try:
            # A byte order mark, which some editors put before the first line.
            value = msgspec.json.decode(line.removeprefix(b"\xef\xbb\xbf"))
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            shown = line[:40].decode(errors="replace").strip()
            raise DataError(f"{where}: not valid JSON ({one_line(error)}): {shown}") from error
        if not isinstance(value, dict):
            raise DataError(f"{where}: a line must be a JSON object, like {{...}}; this is {_kind(value)}")
        return value


class TableSource:
    """Rows of a table that gives one record at a time: parquet, or a Hugging Face data set."""

    def __init__(
        self, table: Any, rows: int, name: str, data: PromptData, columns: Mapping[str, Any]
    ) -> None:
        """`table` gives a dict of the columns to read for each index below `rows`; `columns`: all there are,
        those with fields of their own as mappings."""
        self._table = table
        self._rows = rows
        self.name = name
        self._fields = field_names(data)
        self._names = _names(columns)

    def __len__(self) -> int:
        return self._rows

    def where(self, index: int) -> str:
        return f"{self.name} row {index}"

    def fields(self) -> list[str]:
        return self._names

    def row(self, index: int) -> Row:
        return to_row(self._table[index], self._fields, self.where(index))


class _ParquetTable:
    """Records of a pyarrow table."""

    def __init__(self, table: Any) -> None:
        self._columns = {name: table.column(name) for name in table.column_names}

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {name: column[index].as_py() for name, column in self._columns.items()}


class GeneratedSource:
    """Prompts of a built-in task; row i is a function of the seed and i alone.

    The prompt of copy, count and reverse is random letters, that of repeat one random letter several times.
    The answer is the expected response; for count it is the number of letters.
    """

    name = "data.generated"

    def __init__(self, config: GeneratedData, seed: int, letters: str, limit: int | None = None) -> None:
        """`letters`: the characters that the tokenizer has. With `limit`, no more rows than that."""
        if config.letters > len(letters):
            raise DataError(
                f"data.generated.letters is {config.letters}, but the tokenizer's alphabet has only "
                f"{len(letters)}: use at most that many, or a longer tokenizer.characters.alphabet"
            )
        self._config = config
        self._rows = config.rows if limit is None else min(limit, config.rows)
        self._seed = seed
        self._letters = letters[: config.letters]

    def __len__(self) -> int:
        return self._rows

    def where(self, index: int) -> str:
        return f"generated row {index}"

    def fields(self) -> list[str]:
        return ["prompt", "answer"]

    def row(self, index: int) -> Row:
        config = self._config
        # A random stream for each row: number 0 is its length, number n its letter n.
        key = mix(self._seed, index)
        length = config.min_length + mix(key, 0) % (config.max_length - config.min_length + 1)
        if config.task == "repeat":
            text = self._letter(key, 1) * length
        else:
            text = "".join(self._letter(key, place) for place in range(1, length + 1))
        answers = {"copy": text, "repeat": text, "reverse": text[::-1], "count": str(length)}
        return Row(text, answers[config.task])

    def _letter(self, key: int, place: int) -> str:
        return self._letters[mix(key, place) % len(self._letters)]


def open_source(data: PromptData, base: Path, seed: int, letters: str, limit: int | None = None) -> Source:
    """The rows of `data`, at most `limit`; `base` is the manifest's folder, `letters` what generated tasks
    draw from. Raises `DataError`."""
    if data.jsonl is not None:
        return JsonlSource(base / data.jsonl.path, field_names(data), limit)
    if data.parquet is not None:
        return _open_parquet(base / data.parquet.path, data, limit)
    if data.hugging_face is not None:
        return _open_hugging_face(data.hugging_face, data, base, limit)
    assert data.generated is not None
    return GeneratedSource(data.generated, seed, letters, limit)


def to_row(record: dict[str, Any], names: FieldNames, where: str) -> Row:
    """Check one record. An absent answer is None; a number becomes its text."""
    prompt, answer = _look_up(record, names.prompt), _look_up(record, names.answer)
    if prompt is None and names.prompt not in _names(record):
        raise DataError(
            f"{where}: {missing_name('field', names.prompt, _names(record))} (see data.promptField)"
        )
    # `bool` by itself: Python's True is an int.
    if isinstance(answer, bool) or not isinstance(answer, str | int | float | None):
        raise DataError(f'{where}: field "{names.answer}" must be text or a number, not {_kind(answer)}')
    return Row(
        _check_prompt(prompt, names.prompt, where),
        json.dumps(answer) if isinstance(answer, int | float) else answer,
        {name: _plain(_look_up(record, name), name, where) for name in names.further},
    )


def _plain(value: Any, field: str, where: str) -> Any:
    """The value, which a reward may be given: it can be sent to another process as it is."""
    if isinstance(value, Mapping):
        return {str(key): _plain(item, field, where) for key, item in value.items()}
    if isinstance(value, list):
        return [_plain(item, field, where) for item in value]
    if isinstance(value, int) and not -(2**63) <= value < 2**64:
        raise DataError(f'{where}: field "{field}" has {value}: a reward gets integers of 64 bits')
    if not isinstance(value, str | int | float | None):
        raise DataError(
            f'{where}: field "{field}" (see data.rewardFields) has {_kind(value)}: a reward gets text, '
            "numbers, true or false, null, lists and objects of these"
        )
    return value


def _look_up(record: Mapping[str, Any], field: str) -> Any:
    """The value of a field, None where it is absent; `a.b` is field b of the object in a, where there is no
    field with that very name."""
    if field in record:
        return record[field]
    outer, _, inner = field.partition(".")
    value = record.get(outer)
    return _look_up(value, inner) if inner and isinstance(value, Mapping) else None


def _names(record: Mapping[str, Any]) -> list[str]:
    """The names that `_look_up` finds something under, without those of whole objects."""
    names = []
    for name, value in record.items():
        inner = _names(value) if isinstance(value, Mapping) else []
        names += [f"{name}.{each}" for each in inner] or [name]
    return names


def _check_prompt(value: Any, field: str, where: str) -> PromptText:
    if isinstance(value, str):
        if not value:
            raise DataError(f'{where}: field "{field}" is empty')
        return value
    if not isinstance(value, list):
        raise DataError(
            f'{where}: field "{field}" must be text or a list of chat messages, not {_kind(value)}'
        )
    if not value:
        raise DataError(f'{where}: field "{field}" is an empty list of messages')
    return [
        _check_message(message, f'{where}: field "{field}", message {n}') for n, message in enumerate(value)
    ]


def _check_message(message: Any, where: str) -> dict[str, str]:
    if not isinstance(message, dict):
        raise DataError(f'{where} must be an object with "role" and "content", not {_kind(message)}')
    for key in ("role", "content"):
        if not isinstance(message.get(key), str):
            raise DataError(f'{where}: "{key}" must be text, not {_kind(message.get(key))}')
    return {"role": message["role"], "content": message["content"]}


def _open_parquet(path: Path, data: PromptData, limit: int | None) -> Source:
    import pyarrow
    from pyarrow import parquet

    try:
        path.open("rb").close()  # its error is clearer than pyarrow's
        with parquet.ParquetFile(path) as file:
            there = {field.name: _fields_of(field.type) for field in file.schema_arrow}
            columns = _columns(list(there), data, str(path))
            # A file without rows gives no batch to take.
            if limit is None or file.metadata.num_rows == 0:
                table = file.read(columns=columns)
            else:
                batches = file.iter_batches(batch_size=limit, columns=columns)
                table = pyarrow.Table.from_batches([next(batches)])
    except OSError as error:
        raise DataError(f"{path}: {error.strerror or one_line(error)}") from error
    except pyarrow.ArrowException as error:
        raise DataError(f"{path}: not a usable parquet file: {one_line(error)}") from error
    return TableSource(_ParquetTable(table), table.num_rows, str(path), data, there)


def _fields_of(kind: Any) -> dict[str, Any] | None:
    """The fields of a parquet column's type; None where it has none."""
    from pyarrow.types import is_struct

    return {field.name: _fields_of(field.type) for field in kind} if is_struct(kind) else None


def _open_hugging_face(config: HuggingFaceData, data: PromptData, base: Path, limit: int | None) -> Source:
    name = str(base / config.name) if (base / config.name).is_dir() else config.name
    loaded = _load_data_set(name, config)
    table = loaded.select_columns(_columns(loaded.column_names, data, name))
    rows = len(table) if limit is None else min(limit, len(table))
    return TableSource(table, rows, f"{name} ({config.split})", data, loaded.features)


def _load_data_set(name: str, config: HuggingFaceData) -> Any:
    import datasets

    try:
        # `load_dataset` refuses a folder that `save_to_disk` wrote; these files tell it.
        if not any((Path(name) / file).is_file() for file in ("dataset_dict.json", "state.json")):
            return datasets.load_dataset(name, config.config, split=config.split)
        saved = datasets.load_from_disk(name)
    except (OSError, ValueError, datasets.exceptions.DatasetsError) as error:
        raise DataError(f'data set "{config.name}" does not load: {one_line(error)}') from error
    if not isinstance(saved, datasets.DatasetDict):
        return saved
    if config.split not in saved:
        raise DataError(f"{name}: {missing_name('split', config.split, list(saved))}")
    return saved[config.split]


def _columns(names: list[str], data: PromptData, where: str) -> list[str]:
    """The columns to read: those with the prompt, and with the other fields where there are any."""
    fields = field_names(data)
    # A field of an object is read with the whole column that has the object.
    columns = [
        field if field in names else field.partition(".")[0]
        for field in (fields.prompt, fields.answer, *fields.further)
    ]
    if columns[0] not in names:
        raise DataError(f"{where}: {missing_name('column', data.prompt_field, names)} (see data.promptField)")
    return [name for name in dict.fromkeys(columns) if name in names]


def _kind(value: Any) -> str:
    names = {dict: "an object", list: "a list", str: "text", bool: "true or false", type(None): "null"}
    return names.get(type(value), "a number" if isinstance(value, int | float) else type(value).__name__)
