"""Figures of the benchmarks: one object each, in tests/bench/results/*.json."""

import argparse
import datetime
import json
import os
import platform
import shlex
import sys
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

RESULTS = Path(__file__).parent / "results"


@dataclass(frozen=True)
class Figure:
    """One measured figure, beside its baseline from the same run."""

    name: str
    value: float
    unit: str
    baseline: float | None = None
    goal: str | None = None
    """What the project aims for, in words."""

    @property
    def ratio(self) -> float | None:
        return None if not self.baseline else self.value / self.baseline


def machine() -> str:
    """This machine in one line: processor, cores, memory, accelerators, Python."""
    model = platform.processor() or platform.machine()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        names = [
            line.split(":", 1)[1].strip() for line in cpuinfo.read_text().splitlines() if "model name" in line
        ]
        model = names[0] if names else model
    gigabytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    cores = len(os.sched_getaffinity(0))
    return f"{model}, {cores} cores, {gigabytes:.0f} GiB, {_accelerators()}Python {platform.python_version()}"


def _accelerators() -> str:
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_available():
        return ""
    return f"{torch.cuda.device_count()} x {torch.cuda.get_device_name(0)}, "


def parser(text: str | None) -> argparse.ArgumentParser:
    """The command line of a benchmark: `text` is its help; `--out`, the folder for `record`."""
    made = argparse.ArgumentParser(description=text, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--out", type=Path, default=RESULTS, help="folder of the results")
    return made


def take_names(line: argparse.ArgumentParser, known: Collection[str], metavar: str) -> None:
    """Let a command line end with some of the names that are `known`, as `names`; none: all of them."""

    def one(name: str) -> str:
        if name not in known:
            raise argparse.ArgumentTypeError(f"{name!r} is not known; known: {', '.join(map(repr, known))}")
        return name

    # Not by `choices`: Python 3.11 looks for the empty list among them.
    line.add_argument("names", nargs="*", type=one, metavar=metavar, help="default: all")


def _line(figure: Figure) -> str:
    against = "" if figure.ratio is None else f"  ({figure.ratio:.3g} x the baseline {figure.baseline:.4g})"
    return f"{figure.name}: {figure.value:.4g} {figure.unit}{against}"


def record(
    file: str, figures: Sequence[Figure], folder: Path = RESULTS, keep: bool = False, show: bool = True
) -> Path:
    """Write the figures to `folder`/`file`.json, with `keep` beside what is there under other names; with
    `show` print them too."""
    common = {
        "date": datetime.date.today().isoformat(),
        "machine": machine(),
        "command": shlex.join(["python", *sys.orig_argv[1:]]),
    }
    rows = []
    for figure in figures:
        rows.append(
            {
                "name": figure.name,
                "value": figure.value,
                "unit": figure.unit,
                "baseline": figure.baseline,
                "ratio": figure.ratio,
                "goal": figure.goal,
                **common,
            }
        )
        if show:
            print(_line(figure), flush=True)
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{file}.json"
    if keep and path.exists():
        old, new = json.loads(path.read_text()), {row["name"]: row for row in rows}
        rows = [new.pop(row["name"], row) for row in old] + list(new.values())
    path.write_text(json.dumps(rows, indent=2) + "\n")
    return path
