"""Every metric that the operator exports stands in docs/life-of-a-job.md, with its labels, and no other."""

import re
from pathlib import Path

from rljob_operator.metrics import OperatorMetrics

PAGE = Path(__file__).parents[3] / "docs" / "life-of-a-job.md"


def exported() -> set[str]:
    """`name` or `name{label,label}`, as the docs write them."""
    found = set()
    for metric in vars(OperatorMetrics()).values():
        if hasattr(metric, "describe"):
            (described,) = metric.describe()
            name = described.name + ("_total" if described.type == "counter" else "")
            labels = ",".join(metric._labelnames)
            found.add(f"{name}{{{labels}}}" if labels else name)
    return found


def documented() -> set[str]:
    table = PAGE.read_text().split("| metric | |\n", 1)[1].split("\n\n", 1)[0]
    return set(re.findall(r"`(rljob_[^`]+)`", table))


def test_docs_and_code_have_the_same_metrics() -> None:
    assert len(exported()) > 10
    assert documented() == exported()
