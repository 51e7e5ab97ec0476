"""Rows of prompts: JSON Lines, parquet, Hugging Face data sets, built-in tasks.

Guarantees: `len(source)` and `source.row(i)` never change during a run; opening a source reads and checks
its structure; what is wrong is named by file and line (or row), without the text that stands there. Memory
per row is a few bytes, except for parquet files, whose two columns are held.
"""

import weakref
from array import array
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from rljob_api.data import GeneratedData, PromptData
from rljob_runtime.data.errors import COMPRESSED, GZIP, IN_LFS, LFS, DataError, one_line, unreadable
from rljob_runtime.data.json_advice import advice
from rljob_runtime.data.rows import (
    FieldNames,
    Row,
    Source,
    field_names,
    kind_of,
    left_out_of,
    names_of,
    to_row,
)
from rljob_runtime.data.shuffle import mix
from rljob_runtime.data.tables import open_hugging_face, open_parquet
from rljob_runtime.given_files import open_regular

_NAMED_ROWS = 100
"""Rows that are looked at to name the fields that there are."""

_LINE_BYTES = 256 << 20
"""More than any row has."""
_OTHERS = {
    b"\xff\xfe": "the file is UTF-16 text: write it as UTF-8",
    b"\xfe\xff": "the file is UTF-16 text: write it as UTF-8",
    b"PAR1": "the file is parquet: name it by data.parquet",
    GZIP: COMPRESSED,
    LFS: IN_LFS,
}
"""What else a file is, by what it begins with."""


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
            self._file = open_regular(path)
        except OSError as error:
            raise unreadable(path, error) from error
        # Open for as long as there is somebody who may ask for a row; nobody else knows when that is over.
        weakref.finalize(self, self._file.close)
        self._index(limit)

    def _index(self, limit: int | None) -> None:
        position = 0
        for number, line in enumerate(iter(partial(self._file.readline, _LINE_BYTES), b""), start=1):
            if len(line) == _LINE_BYTES:
                raise DataError(
                    f"{self.name}:{number}: a line of {_LINE_BYTES >> 20} MiB or more: the file is no "
                    "JSON Lines, which has an object on each line"
                )
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

    def left_out(self, index: int) -> list[str]:
        self._file.seek(self._starts[index])
        return left_out_of(self._decode(self._file.readline(), self.where(index)), self._fields)

    def fields(self) -> list[str]:
        found: dict[str, None] = {}
        for index in range(min(len(self), _NAMED_ROWS)):
            self._file.seek(self._starts[index])
            found |= dict.fromkeys(names_of(self._decode(self._file.readline(), self.where(index))))
        return list(found)

    def _parse(self, line: bytes, where: str) -> Row:
        try:
            return to_row(self._decode(line, where), self._fields, where)
        except RecursionError as error:
            raise DataError(
                f"{where}: nested too deeply to be read: take out the field with lists or objects that many "
                "levels deep"
            ) from error

    def _decode(self, line: bytes, where: str) -> dict[str, Any]:
        try:
            # A byte order mark, which some editors put before the first line.
            value = msgspec.json.decode(line.removeprefix(b"\xef\xbb\xbf"))
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            for begin, other in _OTHERS.items():
                if line.startswith(begin):
                    raise DataError(f"{self.name}: {other}") from error
            # Nothing of the line itself, which may be private: the job's status has what is said here.
            try:
                text = line.decode()
            except UnicodeDecodeError as wrong:
                raise DataError(
                    f"{where}: not UTF-8 text (byte {wrong.start}): write the file as UTF-8"
                ) from error
            raise DataError(f"{where}: not valid JSON ({one_line(error)}){advice(text)}") from error
        if not isinstance(value, dict):
            kind = kind_of(value)
            what_to_do = advice("[") if isinstance(value, list) else ""
            raise DataError(
                f"{where}: a line must be a JSON object, like {{...}}; this is {kind}{what_to_do}"
            )
        return value


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

    def left_out(self, index: int) -> list[str]:
        return []

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


class SystemPrompted:
    """The rows of another source, each with a system message before its prompt."""

    def __init__(self, source: Source, system_prompt: str) -> None:
        self.name = source.name
        self._source = source
        self._system = {"role": "system", "content": system_prompt}

    def __len__(self) -> int:
        return len(self._source)

    def where(self, index: int) -> str:
        return self._source.where(index)

    def left_out(self, index: int) -> list[str]:
        return self._source.left_out(index)

    def fields(self) -> list[str]:
        return self._source.fields()

    def row(self, index: int) -> Row:
        row = self._source.row(index)
        prompt = row.prompt
        messages = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt
        if messages[0]["role"] == "system":
            raise DataError(
                f"{self.where(index)}: the prompt begins with a system message, and data.systemPrompt is set "
                "too: take one of the two away"
            )
        return msgspec.structs.replace(row, prompt=[self._system, *messages])


def open_source(data: PromptData, base: Path, seed: int, letters: str, limit: int | None = None) -> Source:
    """The rows of `data`, at most `limit`; `base` is the manifest's folder, `letters` what generated tasks
    draw from. Raises `DataError`."""
    source = _open_rows(data, base, seed, letters, limit)
    return source if data.system_prompt is None else SystemPrompted(source, data.system_prompt)


def _open_rows(data: PromptData, base: Path, seed: int, letters: str, limit: int | None) -> Source:
    if data.jsonl is not None:
        return JsonlSource(base / data.jsonl.path, field_names(data), limit)
    if data.parquet is not None:
        return open_parquet(base / data.parquet.path, data, limit)
    if data.hugging_face is not None:
        return open_hugging_face(data.hugging_face, data, base, limit)
    assert data.generated is not None
    return GeneratedSource(data.generated, seed, letters, limit)
