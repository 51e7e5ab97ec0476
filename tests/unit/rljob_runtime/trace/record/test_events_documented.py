"""Every event that the runtime records is in `EVENTS` and in docs/operations.md, and no other."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import get_args

from rljob_runtime.rollout.pool import LeftReason
from rljob_runtime.trace.record.event_log import EVENTS
from rljob_runtime.trace.report.waterfall import REASONS

ROOT = Path(__file__).parents[5]
RUNTIME = ROOT / "runtime" / "rljob_runtime"


def texts(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


def recorded() -> Iterator[str]:
    """The names that `span` and `add` of an event log, and what wraps them, are called with."""
    for path in RUNTIME.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute) or not node.args:
                continue
            called = ast.unparse(node.func)
            if re.search(r"(events|phases|_log)\.(span|add)$", called):
                name = node.args[0]
                if isinstance(name, ast.Constant):
                    yield str(name.value)


def test_what_is_recorded_is_known() -> None:
    found = set(recorded())
    assert {"idle", "get", "generate", "evaluate", "weight_publish", "forward"} <= found
    assert found <= set(EVENTS)


def test_what_is_known_is_recorded() -> None:
    outside = [path for path in RUNTIME.rglob("*.py") if "trace" not in path.relative_to(RUNTIME).parts]
    assert set(EVENTS) <= {text for path in outside for text in texts(path)}


def test_docs_and_code_have_the_same_events() -> None:
    page = (ROOT / "docs" / "operations.md").read_text()
    table = page.split("\n## Events\n", 1)[1].split("\n## ", 1)[0]
    names = [line.split("|")[1] for line in table.splitlines() if line.startswith("| `")]
    assert sorted(name for cell in names for name in re.findall(r"`(\w+)`", cell)) == sorted(EVENTS)


def test_docs_and_report_know_every_reason_for_which_a_response_leaves_its_engine() -> None:
    page = (ROOT / "docs" / "operations.md").read_text()
    (paragraph,) = re.findall(r"^Why a response left its engine.*$", page, flags=re.MULTILINE)
    named = set(re.findall(r"`(\w+)` \(", paragraph))
    reasons = {word for part in get_args(LeftReason) for word in (get_args(part) or (part,))}
    assert named == reasons == set(REASONS) - {""}
