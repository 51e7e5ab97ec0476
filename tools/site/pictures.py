"""The pictures of docs/pictures: `python -m tools.site.pictures [FOLDER]`, with chromium on the path.

FOLDER (build/pictures) has a run of examples/copy.yaml and what it wrote on its terminal; where it has none
the example is run first, which takes a few minutes on two cores. `status.txt` there is what `kubectl get rlj`
and `kubectl rljob status` say while `make cluster-run` trains; without it their picture stays as it is. A
picture is a PNG of at most 256 colours.
"""

import fcntl
import os
import pty
import re
import shutil
import struct
import subprocess
import sys
import tempfile
import termios
from dataclasses import dataclass
from pathlib import Path

from PIL import Image
from rich.console import Console
from rich.terminal_theme import MONOKAI
from rich.text import Text

ROOT = Path(__file__).parents[2]
PICTURES = ROOT / "docs" / "pictures"
COLUMNS, LINES = 110, 30
WIDTH = 1200
"""Pixels of a picture of the report."""
_REDRAWN = re.compile(r"\r\x1b\[2K(?:\x1b\[1A\x1b\[2K)*|\x1b\[\?25[lh]")
"""What the live view writes between two frames: up to the first line of the last one, or the cursor's
state."""


@dataclass(frozen=True)
class Part:
    """A part of the report that is shown."""

    name: str
    heading: str | None
    """The id of the heading that it begins with; None: the page's beginning."""
    height: int
    """In pixels."""


PARTS = [
    Part("report", None, 900),
    Part("report-says", "says", 780),
    Part("report-time", "time", 860),
]


def main(folder: Path) -> None:
    """Make all pictures, of the run in `folder`."""
    run, terminal = folder / "run", folder / "terminal.txt"
    if not (run / "report.html").exists():
        folder.mkdir(parents=True, exist_ok=True)
        command = ["rljob", "run", str(ROOT / "examples" / "copy.yaml"), "--output", str(run), "--restart"]
        terminal.write_bytes(on_a_terminal(command))
    PICTURES.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch:
        page = Path(scratch) / "page.html"
        report = (run / "report.html").read_text()
        for part in PARTS:
            page.write_text(beginning_at(report, part.heading))
            photograph(page, PICTURES / f"{part.name}.png", WIDTH, part.height)
        # The run's folder is where the reader has it.
        text = terminal.read_bytes().decode().replace(str(run), "runs/copy-grpo")
        shown = frames(text)
        page.write_text(as_html("\n\n".join([shown[0], shown[len(shown) // 2], shown[-1]])))
        photograph(page, PICTURES / "terminal.png", 1100, 240)
        if (status := folder / "status.txt").exists():
            said = status.read_text()
            lines = said.splitlines()
            columns = max(map(len, lines))
            page.write_text(as_html(said, columns))
            photograph(page, PICTURES / "status.png", 10 * columns + 20, 19 * len(lines) + 40)


def on_a_terminal(command: list[str]) -> bytes:
    """What a command writes on a terminal of COLUMNS and LINES. RuntimeError where it fails."""
    process, terminal = pty.fork()
    if process == 0:
        os.environ.update(TERM="xterm-256color", COLORTERM="truecolor")
        os.execvp(command[0], command)
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", LINES, COLUMNS, 0, 0))
    written = bytearray()
    while True:
        try:
            more = os.read(terminal, 1 << 16)
        except OSError:  # Linux: nobody has the other end any more
            break
        written += more
    if code := os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]):
        raise RuntimeError(f"{' '.join(command)} ended with {code}:\n{written[-2000:].decode()}")
    return bytes(written)


def frames(written: str) -> list[str]:
    """What a live view had on the screen: first its header, then frame by frame."""
    return [each.strip("\n") for each in _REDRAWN.split(written.replace("\r\n", "\n")) if each.strip()]


def as_html(written: str, columns: int = COLUMNS) -> str:
    """A terminal's text with its colours, as a page."""
    with open(os.devnull, "w") as nowhere:
        console = Console(record=True, width=columns, file=nowhere, color_system="truecolor")
        console.print(Text.from_ansi(written))
        return console.export_html(theme=MONOKAI, inline_styles=True)


def beginning_at(page: str, heading: str | None) -> str:
    """A page without what comes before a heading of it."""
    if heading is None:
        return page
    removing = (
        f"<script>for (const first = document.getElementById('{heading}'); first.previousElementSibling;)"
        " first.previousElementSibling.remove()</script>"
    )
    return page.replace("</body>", f"{removing}</body>")


def photograph(page: Path, picture: Path, width: int, height: int) -> None:
    """The upper `height` pixels of a page in a window of `width`, as a PNG."""
    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    if chromium is None:
        raise RuntimeError("chromium is not on the path (Debian, Ubuntu: apt install chromium)")
    options = ["--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"]
    size = ["--virtual-time-budget=2000", f"--window-size={width},{height}"]
    done = subprocess.run(
        [chromium, *options, *size, f"--screenshot={picture}", page.as_uri()],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    if done.returncode or not picture.exists():
        raise RuntimeError(f"chromium ended with {done.returncode}:\n{done.stderr}")
    Image.open(picture).convert("RGB").quantize(256).save(picture, optimize=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]) if sys.argv[1:] else ROOT / "build" / "pictures")
