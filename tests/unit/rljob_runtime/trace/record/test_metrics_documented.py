"""Every value of a line of metrics.jsonl, and its curve in TensorBoard, stands in docs/operations.md, and no
other."""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rljob_api.data import Curriculum as CurriculumSettings
from rljob_runtime.driver.tracker import Tracker
from rljob_runtime.groups.counts import GroupCounts
from rljob_runtime.groups.curriculum import Curriculum
from rljob_runtime.groups.source_rewards import source_rewards
from rljob_runtime.rollout.pool import EnginePool
from rljob_runtime.trace.record.metrics_log import METRICS_FILE, MetricsLog, scalars
from rljob_runtime.trace.record.start_log import STARTS_FILE
from tests.support.runtime.steps import HEADER, step_metrics

PAGE = Path(__file__).parents[5] / "docs" / "operations.md"
KEYS = {
    "staleness_histogram": "VERSIONS", "busy": "POOL", "seconds": "EVENT", "cancelled": "REASON",
    "discarded": "REASON", "rejected": "REASON", "reward_parts": "NAME", "reward_metrics": "NAME",
    "source_groups": "NAME", "source_reward": "NAME", "source_pass_rate": "NAME",
    "logger_failures": "NAME", "logger_lost": "NAME",
}  # fmt: skip
"""Values that are dicts, and what their keys are; the others have keys that are always the same."""
MORE = {
    **source_rewards([], lambda row: "", 1.0),
    "logger_failures": {"webhook": 0},
    "logger_lost": {"webhook": 0},
    "curriculum": Curriculum(CurriculumSettings(), 1.0, 0, 1, lambda place: 0).metrics(),
}
"""Values that some jobs have."""


def written(folder: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """A line of metrics.jsonl, and one of starts.jsonl."""
    pool = EnginePool(lambda: 1000.0, lambda slot, why: None)
    log = MetricsLog(folder, clock=lambda: 1000.0)
    tracker = Tracker(HEADER, pool, log, lambda: 1000.0, 0, 10, 64, with_kl=True, with_teacher=True)
    tracker.begin(0)
    counts = GroupCounts(9, 5, 1, {"over-sampling": 3}, {"trainer restarted": 2}, {"timeout": 1}, 4, 6)
    tracker.step_done(step_metrics(0, parity=1e-6, masked=0.2), [0, 1], 8, 0, 1.0, counts, MORE)
    tracker.close()
    lines = [(folder / name).read_text().splitlines()[0] for name in (METRICS_FILE, STARTS_FILE)]
    return json.loads(lines[0]), json.loads(lines[1])


def section(title: str) -> list[list[str]]:
    """The names in backticks in each cell of the table in a section."""
    text = PAGE.read_text().split(f"\n## {title}\n", 1)[1].split("\n## ", 1)[0]
    rows = [line.split("|")[1:-1] for line in text.splitlines() if line.startswith("| `")]
    return [re.findall(r"`([^`]+)`", cell) for row in rows for cell in row[:2]]


def test_docs_and_code_have_the_same_values_and_curves(tmp_path: Path) -> None:
    row, _ = written(tmp_path)
    expected: dict[str, str | None] = {}
    for name, value in row.items():
        if name in KEYS:
            expected[name] = f"{name}/{KEYS[name]}"
        elif isinstance(value, Mapping):
            expected |= {f"{name}.{key}": f"{name}/{key}" for key in value}
        else:
            expected[name] = next(iter(scalars({name: value})), None)
    cells = section("Metrics")
    documented: dict[str, str | None] = {}
    for names, tags in zip(cells[::2], cells[1::2], strict=True):
        documented |= dict(zip(names, tags or [None] * len(names), strict=True))
    assert documented == expected


def test_docs_and_code_have_the_same_fields_of_starts(tmp_path: Path) -> None:
    _, line = written(tmp_path)
    assert {name for names in section("Interruptions")[::2] for name in names} == set(line)
