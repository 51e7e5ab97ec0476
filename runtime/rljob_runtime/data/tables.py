"""Rows of prompts in tables: parquet files, and data sets of the `datasets` library.

Guarantees: of a parquet file the columns with the fields that are read are held, and no others; no image is
decoded to see that there is one.
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from functools import cached_property
from pathlib import Path
from typing import Any

from rljob_api.data import HuggingFaceData, PromptData
from rljob_runtime.data.doubts import DataDoubt
from rljob_runtime.data.errors import (
    COMPRESSED,
    GZIP,
    IN_LFS,
    LFS,
    DataError,
    PromptMissing,
    missing_name,
    one_line,
    unreadable,
)
from rljob_runtime.data.images import has_content, refusal, suspects
from rljob_runtime.data.rows import Row, Source, field_names, left_out_of, names_of, to_row
from rljob_runtime.given_files import open_regular

_MAGIC = b"PAR1"
"""What a parquet file begins and ends with."""
_AT_ONCE = 16
"""Rows of a column that may have images that are read at a time: each may have megabytes."""


def open_parquet(path: Path, data: PromptData, limit: int | None) -> Source:
    """The rows of a parquet file, at most `limit`. Raises `DataError`."""
    import pyarrow
    from pyarrow import parquet

    try:
        open_regular(path).close()  # its error is clearer than pyarrow's
        with parquet.ParquetFile(path) as file:
            names = [field.name for field in file.schema_arrow]
            there = {field.name: _fields_of(field.type) for field in file.schema_arrow}
            columns = _columns(list(there), data, str(path))
            for column in columns:
                if (count := names.count(column)) > 1:
                    raise DataError(
                        f'{path}: {count} columns are called "{column}": write the file with a name for each '
                        "that is its own"
                    )
            for column in suspects(data.reward_fields) & there.keys():
                stored = file.iter_batches(batch_size=_AT_ONCE, columns=[column])
                _refuse_images((batch.column(0) for batch in stored), str(path), column)
            # A file without rows gives no batch to take.
            if limit is None or file.metadata.num_rows == 0:
                table = file.read(columns=columns)
            else:
                batches = file.iter_batches(batch_size=limit, columns=columns)
                table = pyarrow.Table.from_batches([next(batches)])
    except OSError as error:
        raise unreadable(path, error) from error
    except pyarrow.ArrowException as error:
        if (other := _other_kind(path)) is not None:
            raise DataError(f"{path}: {other}") from error
        raise DataError(f"{path}: not a usable parquet file: {one_line(error)}") from error
    return TableSource(_ParquetTable(table), table.num_rows, str(path), data, there)


def _other_kind(path: Path) -> str | None:
    """What a file is that is no parquet, and what to do; None where it is parquet by its two ends."""
    with path.open("rb") as file:
        begin = file.read(64)
        file.seek(max(0, path.stat().st_size - len(_MAGIC)))
        end = file.read()
    if begin.startswith(_MAGIC):
        # What is whole has something else, which the library tells.
        cut = "not a usable parquet file: it is cut short, for it lacks the end: copy it again"
        return None if end == _MAGIC else cut
    if begin.startswith(GZIP):
        return COMPRESSED
    if begin.startswith(LFS):
        return IN_LFS
    text = begin.removeprefix(b"\xef\xbb\xbf").lstrip()
    if text.startswith(b"{"):
        return "the file is JSON, and no parquet: name a file of JSON Lines by data.jsonl"
    if not begin:
        return "the file is empty: write it again"
    return "the file is no parquet: write it as such, with to_parquet of pandas or datasets"


def _refuse_images(batches: Iterable[Any], where: str, column: str) -> None:
    """Raises `DataError` where a value of the column, an array of them at a time, is an image. Reads no
    further than that."""
    values = (value for batch in batches for value in batch)
    for index, value in enumerate(values):
        try:
            found = has_content(value.as_py())
        except UnicodeDecodeError as error:
            raise _not_utf8(f"{where} row {index}", column, error) from error
        if found:
            raise DataError(refusal(f"{where} row {index}", column))


def _not_utf8(where: str, column: str, error: UnicodeDecodeError) -> DataError:
    return DataError(
        f'{where}: field "{column}" has text that is not UTF-8 ({one_line(error)}): write it as UTF-8, or '
        "leave the row out"
    )


def _fields_of(kind: Any) -> dict[str, Any] | None:
    """The fields of a parquet column's type; None where it has none."""
    from pyarrow.types import is_struct

    return {field.name: _fields_of(field.type) for field in kind} if is_struct(kind) else None


def open_hugging_face(config: HuggingFaceData, data: PromptData, base: Path, limit: int | None) -> Source:
    """The rows of a data set, at most `limit`; `base` is the manifest's folder. Raises `DataError`."""
    name = str(base / config.name) if (base / config.name).is_dir() else config.name
    loaded = _load_data_set(name, config)
    for column in suspects(data.reward_fields) & set(loaded.column_names):
        # As it is stored: images are not decoded.
        stored = loaded.select_columns([column]).with_format("arrow")
        _refuse_images((batch[column] for batch in stored.iter(_AT_ONCE)), f"{name} ({config.split})", column)
    table = loaded.select_columns(_columns(loaded.column_names, data, name))
    rows = len(table) if limit is None else min(limit, len(table))
    return TableSource(table, rows, f"{name} ({config.split})", data, loaded.features)


def _load_data_set(name: str, config: HuggingFaceData) -> Any:
    import datasets

    try:
        with _no_bars() if Path(name).is_dir() else nullcontext():
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


def without_effect(config: HuggingFaceData, base: Path) -> Iterator[DataDoubt]:
    """Which fields of `config` change nothing of a folder that `save_to_disk` wrote; `base` is the manifest's
    folder."""
    state, splits = (base / config.name / file for file in ("state.json", "dataset_dict.json"))
    own = _split_of(state) if state.is_file() else None
    # The default may be nobody's choice.
    if state.is_file() and config.split not in (own, HuggingFaceData.model_fields["split"].default):
        yield DataDoubt(
            f"split is {config.split}, and {base / config.name} was saved as one data set, without splits: "
            "all of its rows are taken. Take it out, or save the rows that are meant to a folder of their own"
        )
    if config.config is not None and (state.is_file() or splits.is_file()):
        yield DataDoubt(
            f"config is {config.config}, and {base / config.name} is a folder that save_to_disk wrote, which "
            "has one configuration alone: take it out"
        )


def _split_of(state: Path) -> str | None:
    """Which split the rows are that `save_to_disk` wrote; None where that is not known."""
    with suppress(OSError, ValueError):
        found = json.loads(state.read_bytes())
        split = found.get("_split") if isinstance(found, dict) else None
        return split if isinstance(split, str) else None
    return None


@contextmanager
def _no_bars() -> Iterator[None]:
    """The library draws no progress bars meanwhile, on the terminal of whoever reads a folder: they tell
    something of what is fetched alone."""
    import datasets

    shown = not datasets.are_progress_bars_disabled()
    datasets.disable_progress_bars()
    try:
        yield
    finally:
        if shown:
            datasets.enable_progress_bars()


def _columns(names: list[str], data: PromptData, where: str) -> list[str]:
    """The columns to read: those with the prompt, and with the other fields where there are any."""
    fields = field_names(data)
    # A field of an object is read with the whole column that has the object.
    columns = [
        field if field in names else field.partition(".")[0]
        for field in (fields.prompt, fields.answer, *fields.further)
    ]
    if columns[0] not in names:
        message = f"{where}: {missing_name('column', data.prompt_field, names)} (see data.promptField)"
        raise PromptMissing(message, names)
    return [name for name in dict.fromkeys(columns) if name in names]


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
        self._names = names_of(columns)

    def __len__(self) -> int:
        return self._rows

    def where(self, index: int) -> str:
        return f"{self.name} row {index}"

    def fields(self) -> list[str]:
        return self._names

    def row(self, index: int) -> Row:
        return to_row(self._record(index), self._fields, self.where(index))

    def left_out(self, index: int) -> list[str]:
        return left_out_of(self._record(index), self._fields) if self._has_messages else []

    @cached_property
    def _has_messages(self) -> bool:
        # The values of a column are of one type: of texts no row is read for messages.
        return isinstance(self.row(0).prompt, list)

    def _record(self, index: int) -> dict[str, Any]:
        try:
            record: dict[str, Any] = self._table[index]
        except UnicodeDecodeError as error:
            raise _not_utf8(self.where(index), self._undecodable(index), error) from error
        return record

    def _undecodable(self, index: int) -> str:
        """The column of row `index` that is not UTF-8."""
        for name in self._table.column_names:
            try:
                self._table.select_columns([name])[index]
            except UnicodeDecodeError:
                return str(name)
        raise AssertionError("all columns can be read one by one, and not together")


class _ParquetTable:
    """Records of a pyarrow table, as a data set gives them."""

    def __init__(self, table: Any) -> None:
        self._table = table
        self.column_names: list[str] = table.column_names
        self._columns = {name: table.column(name) for name in self.column_names}

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {name: column[index].as_py() for name, column in self._columns.items()}

    def select_columns(self, names: list[str]) -> "_ParquetTable":
        return _ParquetTable(self._table.select(names))
