"""Writes docs/measurements.md: the texts of measurements.md beside this file, with the tables of
tests/bench/results/*.json in the place of their names in braces. `{{file | figure}}` stands for the value of
one figure, `{{file | figure | ratio}}` for how many times its baseline it is. A section of which results are
missing is left out, and said to be on standard error.

python -m tests.bench.measurements
"""

import argparse
import json
import re
import sys
from pathlib import Path
from typing import Any

from tests.bench.figures import RESULTS

TEXTS = Path(__file__).with_suffix(".md")
PAGE = Path(__file__).parents[2] / "docs" / "measurements.md"


def table(rows: list[dict[str, Any]]) -> str:
    """One line per figure, and where they come from."""
    lines = ["| figure | value | baseline | ratio |", "|---|---|---|---|"]
    for row in rows:
        baseline = "" if row["baseline"] is None else number(row["baseline"])
        ratio = "" if row["ratio"] is None else f"{row['ratio']:.2f}"
        name = row["name"].replace("|", "\\|")
        lines.append(f"| {name} | {number(row['value'])} {row['unit']} | {baseline} | {ratio} |")
    return "\n".join([*lines, "", sources(rows)])


def sources(rows: list[dict[str, Any]]) -> str:
    """When, where and by which commands the rows were measured: a line for each day and machine."""
    commands: dict[tuple[str, str], list[str]] = {}
    for row in rows:
        known = commands.setdefault((row["date"], row["machine"]), [])
        if row["command"] not in known:
            known.append(row["command"])
    return "  \n".join(
        ", ".join([date, machine, *(f"`{command}`" for command in found)])
        for (date, machine), found in commands.items()
    )


def number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def missing(section: str) -> list[str]:
    """The names in braces for which there are no results."""
    names = dict.fromkeys(re.findall(r"\{\{(\w+)", section))
    return [name for name in names if not (RESULTS / f"{name}.json").exists()]


def filled(section: str) -> str:
    """A section with its tables and figures, for all of which there are results. LookupError for a figure
    that is not among them."""
    return re.sub(r"\{\{(\w+)(?: \| ([^{}|]+?))?(?: \| (ratio))?\}\}", _shown, section)


def _shown(place: re.Match[str]) -> str:
    """What stands in the place of a name."""
    file, figure, ratio = place.groups()
    rows = json.loads((RESULTS / f"{file}.json").read_text())
    if figure is None:
        return table(rows)
    for row in rows:
        if row["name"] == figure:
            return f"{row['ratio']:.2f} x" if ratio else f"{number(row['value'])} {row['unit']}".rstrip()
    raise LookupError(f"{file}.json has no figure {figure!r}")


def sections() -> list[str]:
    """The texts, by headings."""
    return re.split(r"\n(?=## )", TEXTS.read_text())


def page() -> str:
    """The whole page, without the sections that `left_out` names."""
    return "\n".join(filled(section) for section in sections() if not missing(section))


def left_out() -> list[str]:
    """A line for each section of which results are missing."""
    return [
        f"left out: {section.splitlines()[0].lstrip('# ')!r}, without results of {', '.join(names)}"
        for section in sections()
        if (names := missing(section))
    ]


def main() -> None:
    argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    ).parse_args()
    PAGE.write_text(page())
    for line in left_out():
        print(line, file=sys.stderr)


if __name__ == "__main__":
    main()
