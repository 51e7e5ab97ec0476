"""What the report says of groups that were refused, and of over-sampling."""

import re
from types import SimpleNamespace
from typing import Any, cast

import pytest

from rljob_runtime.groups.counts import GroupCounts
from rljob_runtime.trace.report.section_lost import losses


def page_of(row: dict[str, Any]) -> str:
    """The section of a run whose last line of metrics is this one."""
    return losses(cast(Any, SimpleNamespace(interruptions=[], metrics=SimpleNamespace(rows=[row]))))


def cells(page: str) -> dict[str, str]:
    """The numbers of its table, by what they are of."""
    found = re.findall(r"<td[^>]*>([^<]*)</td>", page)
    return dict(zip(found[::3], found[1::3], strict=True))


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
    page = page_of(counts.metrics())
    found = {what.removeprefix("groups "): number for what, number in cells(page).items()}
    assert "16 groups whose pass rate is outside the filter&#x27;s, 20% of the complete ones" in page
    assert {name: found[name] for name in rows} == rows
    assert ("of other pass rates" in found) == (outside > 0)


@pytest.mark.parametrize(
    ("over_sampling", "told"),
    [
        ({"again": 3, "length_bias": 0.8966}, "0.90"),
        ({"again": 0, "length_bias": 1}, "1.00"),
        ({"again": 3, "length_bias": None}, None),
        ({"again": 3}, None),
        (None, None),
    ],
    ids=["short ones first", "none", "no response yet", "an older line", "no over-sampling"],
)
def test_the_length_bias_of_over_sampling_is_told(
    over_sampling: dict[str, Any] | None, told: str | None
) -> None:
    row = GroupCounts(accepted=60).metrics() | ({"over_sampling": over_sampling} if over_sampling else {})
    assert cells(page_of(row)).get("length bias of over-sampling") == told
