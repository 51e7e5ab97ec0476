"""Files whose paths a person gives, which may name anything: a device, a pipe, a file of a disk's size.

Guarantees: nothing is read without end, and nobody is waited for who does not come: a file is a regular one,
or of a bounded size and with somebody who writes it; anything else is an `OSError` whose `strerror` says what
is wrong and what to do. Standard input is read as any command reads it: until whoever writes it has ended.
"""

import codecs
import errno
import io
import os
import select
import stat
import sys
from pathlib import Path
from typing import BinaryIO

TEXT_BYTES = 4 << 20
"""Longest text: a manifest or a script. The API server takes no object of more than three megabytes."""
WRITER_SECONDS = 10.0
"""How long somebody may take to open a pipe that is read. Who has it open may take any time."""

STDIN = Path("-")
"""Standard input, as a person names it."""


def called(path: Path) -> str:
    """What a text's file is called in messages."""
    return "<stdin>" if path == STDIN else str(path)


def no_text(error: UnicodeDecodeError) -> tuple[int, str]:
    """Of a text that is not UTF-8 the line, from 1, and what it is."""
    if error.object.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return 1, "is UTF-16 text: write it as UTF-8"
    return error.object.count(b"\n", 0, error.start) + 1, "is not UTF-8 text"


def no_place(file: Path, option: str) -> str | None:
    """Why a file that `option` names cannot be written, from the folder that it would be in; None where that
    is there. For before the work whose result it is to hold."""
    if not file.name:
        return f"{option} names no file: name one"
    folder = file.parent
    if folder.is_dir():
        return None
    if folder.exists():
        return f"{folder} is no folder: name another file with {option}"
    return f"the folder {folder} is not there: make it, or name another file with {option}"


def no_file(file: Path, option: str) -> str | None:
    """Why what is there must not be replaced by a file that `option` names; None where nothing is, or a file.
    Root would replace a device for everybody on the machine, and who reads a pipe would wait for ever. A
    folder takes no file's place, and the system says so."""
    if file.exists() and not file.is_file() and not file.is_dir():
        return f"{file} is a device, a pipe or a socket: name a file with {option}"
    return None


def unfinished_name(file: Path) -> Path:
    """Where a file is written, to be renamed to what a person named: nothing that they have is called so."""
    return file.with_name(f".{file.name}.{os.getpid()}.unfinished")


def open_regular(path: Path) -> BinaryIO:
    """A regular file, to be read at any place, as data are. Raises `OSError`."""
    # A pipe that nobody writes would be waited for.
    file = os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb")
    try:
        # A folder has been refused already.
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            why = "it is a device or a pipe, and must be a file: write it to one"
            raise OSError(errno.EINVAL, why, str(path))
    except BaseException:
        file.close()
        raise
    return file


def read_text_file(path: Path, encoding: str = "utf-8") -> str:
    """The text of a file, of a pipe as of `<(command)`, or of standard input, with the line breaks of Unix.
    Raises `OSError` and `UnicodeDecodeError`."""
    content = _standard_input(TEXT_BYTES) if path == STDIN else read_bounded(path, TEXT_BYTES)
    return content.decode(encoding).replace("\r\n", "\n").replace("\r", "\n")


def _standard_input(most: int) -> bytes:
    content = sys.stdin.buffer.read(most + 1)
    _refuse_more(content, most, STDIN)
    return content


def read_bounded(path: Path, most: int) -> bytes:
    """What is in a file or a pipe, which must have no more than `most` bytes. Raises `OSError`."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(descriptor, "rb", buffering=0) as file:
        content = bytearray()
        if stat.S_ISFIFO(os.fstat(descriptor).st_mode):
            content += _begin(file, path)
        os.set_blocking(descriptor, True)
        while len(content) <= most and (more := file.read(min(1 << 20, most + 1 - len(content)))):
            content += more
    _refuse_more(content, most, path)
    return bytes(content)


def _refuse_more(content: bytes | bytearray, most: int, path: Path) -> None:
    if len(content) > most:
        why = f"it has more than {most >> 20} MiB, and cannot be what is to be named here"
        raise OSError(errno.EFBIG, why, str(path))


def _begin(pipe: io.FileIO, path: Path) -> bytes:
    """The first byte of a pipe that does not block, where it had to be read to find out whether anybody
    writes it. Raises `OSError` where nobody does in time."""
    poll = select.poll()
    # That a writer has gone is told without being asked for.
    poll.register(pipe, select.POLLIN)
    for seconds in (0, WRITER_SECONDS):
        if poll.poll(1000 * seconds):
            return b""
        begin = pipe.read(1)
        # None: somebody has it open, and has yet to write.
        if begin is None or begin:
            return begin or b""
    raise OSError(errno.EPIPE, "it is a pipe that nobody writes", str(path))
