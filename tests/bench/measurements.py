"""Writes docs/measurements.md: the texts of measurements.md beside this file, with the tables of
tests/bench/results/*.json in the place of their names in braces. A section of which results are missing is
left out, and said to be on standard error.

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
    names = re.findall(r"\{\{(\w+)\}\}", section)
    return [name for name in names if not (RESULTS / f"{name}.json").exists()]


def filled(section: str) -> str:
    """A section with its tables, for all of which there are results."""
    return re.sub(
        r"\{\{(\w+)\}\}",
        lambda name: table(json.loads((RESULTS / f"{name[1]}.json").read_text())),
        section,
    )


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
