"""What a run of a million samples leaves behind, and how long its report takes.

The run is that of `tests.support.runtime.synthetic_run`: 977 steps of 128 groups of 8 responses on 18 engines
and two trainer ranks, written through the real writers of events, metrics and lengths. Measured are the
folder's size, how long `rljob report` takes (processor time of this process), the size of the page, and how
long Chromium takes to open it: the wall time of a headless Chromium that starts, loads and draws the page,
the median of five, beside that for an empty page.

    python -m tests.bench.large_run [STEPS]
"""

import shutil
import statistics
import subprocess
import tempfile
import time
from pathlib import Path

from rljob_runtime.trace.report.page import write_report
from tests.bench.figures import Figure, parser, record
from tests.support.runtime.synthetic_run import Job, write_run

STEPS = 977
RUNS = 5
SAMPLES = 128 * 8


def size(folder: Path) -> int:
    """Bytes of all files in a folder."""
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())


def seconds_to_open(page: Path) -> float:
    """Wall time of a Chromium that loads and draws a page; the median of `RUNS`."""
    browser = shutil.which("chromium") or shutil.which("chromium-browser")
    if browser is None:
        raise SystemExit("Chromium is needed, to open the report: install it, and put it on the PATH")
    took = []
    with tempfile.TemporaryDirectory() as profile:
        for _ in range(RUNS + 1):
            began = time.perf_counter()
            subprocess.run(
                [
                    browser, "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={profile}",
                    "--window-size=1400,2000", f"--screenshot={profile}/page.png", page.as_uri(),
                ],
                check=True, capture_output=True, timeout=120,
            )  # fmt: skip
            took.append(time.perf_counter() - began)
    # The first one makes the profile.
    return statistics.median(took[1:])


def main() -> None:
    """Measure and record."""
    line = parser(__doc__)
    line.add_argument("steps", type=int, nargs="?", default=STEPS)
    options = line.parse_args()
    steps = options.steps
    with tempfile.TemporaryDirectory() as temporary:
        run = Path(temporary) / "run"
        job = Job(steps=steps, groups=128, samples=8, fast=16, heavy=2, places=64, by_length=True)
        write_run(run, job)
        events, whole = size(run / "events"), size(run)
        began = time.process_time()
        page = write_report(run)
        took = time.process_time() - began
        empty = Path(temporary) / "empty.html"
        empty.write_text("<!doctype html><title>empty</title>")
        opened, nothing = seconds_to_open(page), seconds_to_open(empty)
        samples = steps * SAMPLES
        record(
            "large_run",
            [
                Figure("samples", samples, "responses"),
                Figure("run folder without checkpoints", whole / 2**20, "MiB"),
                Figure("of it events", events / 2**20, "MiB"),
                Figure("run folder for each sample", whole / samples, "bytes"),
                Figure("making the report", took, "s of processor time"),
                Figure("report.html", page.stat().st_size / 2**20, "MiB"),
                Figure("opening the report in Chromium, with its start", opened, "s", nothing, goal="< 3 s"),
            ],
            options.out,
        )


if __name__ == "__main__":
    main()
