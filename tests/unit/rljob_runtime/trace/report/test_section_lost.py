"""What the report says of groups that were refused."""

import re
from types import SimpleNamespace
from typing import Any, cast

import pytest

from rljob_runtime.groups.counts import GroupCounts
from rljob_runtime.trace.report.section_lost import losses


@pytest.mark.parametrize(
    ("outside", "rows"),
    [
        (0, {"refused: equal rewards": "4", "refused: pass rate": "16"}),
        (3, {"refused: equal rewards": "4", "refused: pass rate": "16", "of other pass rates": "3"}),
    ],
    ids=["all of them were refused", "some were trained"],
)
def test_refused_groups_are_told_by_reason(outside: int, rows: dict[str, str]) -> None:
    counts = GroupCounts(accepted=60, refused=20, refused_pass_rate=16, outside_pass_rate=outside)
    analysis = SimpleNamespace(interruptions=[], metrics=SimpleNamespace(rows=[counts.metrics()]))
    page = losses(cast(Any, analysis))
    assert "16 groups whose pass rate is outside the filter&#x27;s, 20% of the complete ones" in page
    cells = re.findall(r"<td[^>]*>([^<]*)</td>", page)
    found = {
        what.removeprefix("groups "): number for what, number in zip(cells[::3], cells[1::3], strict=True)
    }
    assert {name: found[name] for name in rows} == rows
    assert ("of other pass rates" in found) == (outside > 0)
