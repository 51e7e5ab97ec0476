"""Whatever a path names that a person gives, it is read to an end or refused soon."""

import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from rljob_runtime import given_files
from rljob_runtime.cli.command import main
from rljob_runtime.data import sources
from rljob_runtime.data.errors import DataError
from rljob_runtime.data.json_file import NoJsonObject, read_object
from rljob_runtime.data.length_trace import LengthTraceError, read_header, read_length_trace
from rljob_runtime.data.rows import FieldNames
from rljob_runtime.data.sources import JsonlSource
from rljob_runtime.given_files import TEXT_BYTES, open_regular, read_bounded, read_text_file
from rljob_runtime.run_folder import Begin, held


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(given_files, "WRITER_SECONDS", 0.1)


def pipe(folder: Path) -> Path:
    os.mkfifo(path := folder / "pipe")
    return path


def large(folder: Path) -> Path:
    """A file of a disk's size that is no text."""
    path = folder / "large"
    with path.open("wb") as file:
        file.truncate(10 << 30)
    return path


def zeros(folder: Path) -> Path:
    return Path("/dev/zero")


def a_folder(folder: Path) -> Path:
    return folder


EXAMPLE = Path(__file__).parents[3] / "examples" / "copy.yaml"
ODD = {"a pipe": pipe, "a device": zeros, "a large file": large, "a folder": a_folder}
COMMANDS = {
    "validate": ["validate", "{}"],
    "run": ["run", "{}"],
    "from-verl": ["from-verl", "{}"],
    "assumptions": ["simulate", "{good}", "--assumptions", "{}"],
    "trace": ["simulate", "{good}", "--trace", "{}"],
}


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("odd", ODD)
def test_commands_refuse_it(
    command: str, odd: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = ODD[odd](tmp_path)
    given = [word.format(path, good=EXAMPLE) for word in COMMANDS[command]]
    assert main(given) == 2
    said = capsys.readouterr().err
    assert str(path) in said and "Traceback" not in said


READERS: dict[str, Callable[[Path], object]] = {
    "a trace": read_length_trace,
    "a trace's header": read_header,
    "prompts": lambda path: JsonlSource(path, FieldNames("prompt", None, ())),
    "a model's file": read_object,
}


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("odd", ODD)
def test_readers_refuse_it(reader: str, odd: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "_LINE_BYTES", 1 << 20)
    with pytest.raises((LengthTraceError, DataError, NoJsonObject)):
        READERS[reader](ODD[odd](tmp_path))


def test_what_another_command_writes_is_read(tmp_path: Path) -> None:
    """As of `rljob validate <(command)`, also where that takes longer than nobody is waited for."""
    path = pipe(tmp_path)
    begun = threading.Event()

    def write() -> None:
        with path.open("wb") as file:
            begun.set()
            begun.clear()
            begun.wait(3 * given_files.WRITER_SECONDS)
            file.write(b"a: 1\r\nb: 2\n")

    writer = threading.Thread(target=write)
    writer.start()
    assert read_text_file(path) == "a: 1\nb: 2\n"
    writer.join()


def test_no_more_than_the_longest_text(tmp_path: Path) -> None:
    path = tmp_path / "text"
    path.write_bytes(b"a" * TEXT_BYTES)
    assert len(read_bounded(path, TEXT_BYTES)) == TEXT_BYTES
    path.write_bytes(b"a" * (TEXT_BYTES + 1))
    with pytest.raises(OSError, match="more than 4 MiB"):
        read_bounded(path, TEXT_BYTES)


def test_a_regular_file_is_opened_at_its_begin(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"abc")
    with open_regular(tmp_path / "file") as file:
        assert file.read() == b"abc" and file.seek(1) == 1


def test_a_run_keeps_the_manifest_that_came_by_a_pipe(tmp_path: Path) -> None:
    with held(tmp_path / "run", b"what was read", Begin.NEW) as found:
        found.begin()
    assert (tmp_path / "run" / "job.yaml").read_bytes() == b"what was read"
