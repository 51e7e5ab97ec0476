"""Which parts and metrics a job has, and what a response says that lacks one."""

import pytest

from rljob_runtime.rewards import Score
from rljob_runtime.rewards.outcome import MOST_NAMES
from rljob_runtime.rewards.part_names import NOT_RETURNED, PartNames

Values = dict[str, float]


@pytest.mark.parametrize(
    ("parts", "complaints"),
    [
        ([{}, {}], [{}, {}]),
        ([{"a": 1.0}, {"a": 2.0}], [{}, {}]),
        # The first to have a name is not at fault, and whoever came before it is not judged again.
        ([{"a": 1.0}, {"a": 1.0, "b": 1.0}, {"a": 1.0}], [{}, {}, {"parts.b": NOT_RETURNED}]),
        ([{"a": 1.0}, {"b": 1.0}], [{}, {"parts.a": NOT_RETURNED}]),
        ([{"a": 1.0}, {}], [{}, {"parts.a": NOT_RETURNED}]),
    ],
)
def test_what_a_response_lacks(parts: list[Values], complaints: list[dict[str, str]]) -> None:
    names = PartNames()
    admitted = [names.admit(Score(0.0, parts=each)) for each in parts]
    assert [each.complaints for each in admitted] == complaints
    assert [each.parts for each in admitted] == parts


def test_parts_and_metrics_are_different_names() -> None:
    names = PartNames()
    names.admit(Score(0.0, parts={"a": 1.0}, metrics={"b": None}))
    found = names.admit(Score(0.0, parts={"b": 1.0}, metrics={"a": 1.0}))
    assert found.complaints == {"parts.a": NOT_RETURNED, "metrics.b": NOT_RETURNED}


def test_a_value_that_is_no_number_has_one_complaint() -> None:
    names = PartNames()
    names.admit(Score(0.0, parts={"a": 1.0}))
    assert names.admit(Score(0.0, complaints={"parts.a": "nan"})).complaints == {"parts.a": "nan"}


def test_no_more_names_than_are_kept() -> None:
    names = PartNames()
    for number in range(3 * MOST_NAMES):
        score = names.admit(Score(0.0, parts={f"p{number:03}": 1.0}, metrics={"m": 1.0}))
        assert (len(score.parts) == 1) == (number < MOST_NAMES - 1)
        assert len(score.complaints) <= MOST_NAMES
    assert score.metrics == {"m": 1.0}
    assert score.complaints["parts.p095"] == "not kept, for there are 32 others already"


def test_what_failed_says_nothing_of_names() -> None:
    names = PartNames()
    names.admit(Score(0.0, parts={"a": 1.0}))
    failed = Score(0.0, "timeout after 1 s")
    assert names.admit(failed) is failed
