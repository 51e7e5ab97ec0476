"""The tables of docs/moving-from-verl.md.

`python -m tools.verl_page docs/moving-from-verl.md` writes them into the page anew, behind the mark.
"""

import sys
from pathlib import Path

from rljob_runtime.authoring.verl.counterparts import TABLE

MARK = "<!-- The tables below are written by `make crds` from runtime/rljob_runtime/authoring/verl. -->\n"


def page(text: str) -> str:
    """The page with the tables of the code; ValueError where it has no mark."""
    head, mark, _ = text.partition(MARK)
    if not mark:
        raise ValueError(f"the page has no line {MARK!r}")
    return f"{head}{mark}\n{TABLE.markdown()}"


if __name__ == "__main__":
    path = Path(sys.argv[1])
    path.write_text(page(path.read_text()))
