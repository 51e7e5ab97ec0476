"""May a page be written to the file that a person names? To be asked before the work whose result it is.

Guarantees: nothing but an earlier page is written over; a file that cannot be written is told before the
work, and is not there afterwards.
"""

from pathlib import Path

from rljob_runtime.given_files import no_file, no_place

_BEGIN = b"<!doctype html"
"""How a page begins."""


class NoPage(Exception):
    """What is to be written over is no page, or there is no folder for it; the message says so."""


def try_page(page: Path, option: str, by_renaming: bool = False) -> None:
    """Raises `OSError` where the file that `option` names cannot be written, and `NoPage` where there is no
    folder for it, or it would take the place of something else, such as the manifest; `by_renaming`: also of
    what is no file (`no_file`)."""
    if (why := no_place(page, option)) is not None:
        raise NoPage(why)
    there = page.exists()
    if by_renaming and (why := no_file(page, option)) is not None:
        raise NoPage(why)
    if page.is_file():
        with page.open("rb") as file:
            begin = file.read(len(_BEGIN))
        if begin and begin.lower() != _BEGIN:
            raise NoPage(f"{page} is there already, and is no page: name another file with {option}")
    page.open("ab").close()
    if not there:
        page.unlink()
