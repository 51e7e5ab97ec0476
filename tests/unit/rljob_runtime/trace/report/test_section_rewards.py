"""Curves of what rewards are made of."""

import re
from typing import Any

import pytest

from rljob_runtime.trace.report.section_rewards import reward_values


def drawn(*rows: dict[str, Any]) -> list[tuple[str, list[str]]]:
    """The title of each figure, and the names of its lines; none for a line alone, which has no legend."""
    figures = reward_values([{"step": step, **row} for step, row in enumerate(rows)], [])
    return [
        (
            re.findall(r"<figcaption>([^<]*)", each)[0].strip(),
            re.findall(r"<i class=[^>]*></i>([^<]*)<", each),
        )
        for each in figures
    ]


MANY = {f"p{number}": 0.5 for number in range(10)}


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({}, []),
        ({"reward_parts": {}}, []),
        ({"reward_parts": {"right": 0.4, "brief": -0.1}}, [("Parts of the reward", ["brief", "right"])]),
        (
            {"reward_parts": MANY},
            [
                ("Parts of the reward", [f"p{number}" for number in range(8)]),
                ("Parts of the reward", ["p8", "p9"]),
            ],
        ),
        # Each has a scale of its own.
        (
            {"reward_metrics": {"words": 300, "<b>": 0.2}},
            [("&lt;b&gt;", []), ("words", [])],
        ),
        (
            {"source_reward": {"math": 0.2, "code": 0.1}, "source_pass_rate": {"math": 0.1, "code": 0.0}},
            [("Reward by source", ["code", "math"]), ("Passed, by source", ["code", "math"])],
        ),
    ],
    ids=["single numbers", "no part", "parts", "more parts than colours", "metrics", "sources"],
)
def test_each_value_has_a_curve(values: dict[str, Any], expected: list[tuple[str, list[str]]]) -> None:
    assert drawn(values, values) == expected


def test_a_value_that_comes_later_or_is_no_number_is_a_gap() -> None:
    found = drawn({"reward_parts": {"a": 1.0}}, {"reward_parts": {"a": None, "b": 2.0}}, {})
    assert found == [("Parts of the reward", ["a", "b"])]
    assert drawn({"reward_metrics": {"never": None}}) == []
