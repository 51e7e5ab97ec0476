"""Every reason of a condition or an Event stands in docs/life-of-a-job.md, and no other."""

import ast
import re
from pathlib import Path
from typing import get_args

from rljob_api.status import ConditionType

ROOT = Path(__file__).parents[3]
OPERATOR = ROOT / "operator" / "rljob_operator"
FILES = [*(OPERATOR / "plan").glob("*.py"), OPERATOR / "controller" / "reconcile.py"]
OTHERS = {"True", "False", "Unknown", "Normal", "Warning", "Succeeded", "Error", "OOMKilled"}
OTHERS |= {"ErrImagePull", "ImagePullBackOff", "NamespaceTerminating", "ContainerStatusUnknown"}
"""Words of the same form that are no reasons of the operator."""
FORM = re.compile(r"[A-Z][a-z]+[A-Za-z]*")


def in_code() -> set[str]:
    trees = [ast.parse(file.read_text()) for file in FILES]
    literals = (node.value for tree in trees for node in ast.walk(tree) if isinstance(node, ast.Constant))
    words = {word for word in literals if isinstance(word, str) and FORM.fullmatch(word)}
    return words - OTHERS - (set(get_args(ConditionType)) - {"Accepted", "Running", "Suspended"})


def documented() -> set[str]:
    page = (ROOT / "docs" / "life-of-a-job.md").read_text()
    conditions = page.split("## Conditions\n", 1)[1].split("\n## ", 1)[0]
    events = page.split("## Events\n", 1)[1].split("\n## ", 1)[0]
    rows = [line for line in (conditions + events).splitlines() if line.startswith("| ")]
    # The reason is the second cell of a condition's row and the first one of an Event's.
    cells = [cell for row in rows for cell in row.split("|")[1:3]]
    words = {word for cell in cells for word in re.findall(r"`([A-Za-z]+)`", cell) if FORM.fullmatch(word)}
    return words - (set(get_args(ConditionType)) - {"Accepted", "Running", "Suspended"})


def test_docs_and_code_have_the_same_reasons() -> None:
    assert len(in_code()) > 30
    assert documented() == in_code()
