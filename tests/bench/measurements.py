"""Writes docs/measurements.md: the texts of measurements.md beside this file, with the tables of
tests/bench/results/*.json in the place of their names in braces.

python -m tests.bench.measurements
"""

import argparse
import json
import re
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


def filled(section: str) -> str | None:
    """A section with its tables; None while there are no results for one of them."""
    for name in re.findall(r"\{\{(\w+)\}\}", section):
        path = RESULTS / f"{name}.json"
        if not path.exists():
            return None
        section = section.replace(f"{{{{{name}}}}}", table(json.loads(path.read_text())))
    return section


def page() -> str:
    """The whole page."""
    sections = re.split(r"\n(?=## )", TEXTS.read_text())
    return "\n".join(each for each in map(filled, sections) if each is not None)


def main() -> None:
    argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    ).parse_args()
    PAGE.write_text(page())


if __name__ == "__main__":
    main()
