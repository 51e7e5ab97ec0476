"""Whether responses that the limit cuts off earn less than others to the same prompt."""

import pytest

from rljob_runtime.trace.analyse.cut_off import CutOff

CUT, ENDED = True, False


@pytest.mark.parametrize(
    ("responses", "expected"),
    [
        ([(CUT, 0.0), (CUT, 0.0), (ENDED, 1.0)], CutOff(better=1)),
        ([(CUT, 1.0), (ENDED, 0.0), (ENDED, 1.0)], CutOff(worse=1)),
        ([(CUT, 0.0), (CUT, 1.0), (ENDED, 0.5)], CutOff()),
        ([(CUT, 0.0), (CUT, 1.0)], CutOff()),
        ([(ENDED, 0.0), (ENDED, 1.0)], CutOff()),
        ([], CutOff()),
    ],
    ids=["cut off earn less", "cut off earn more", "alike", "all cut off", "none cut off", "no reward"],
)
def test_a_group_counts_where_both_kinds_are_there_and_differ(
    responses: list[tuple[bool, float]], expected: CutOff
) -> None:
    found = CutOff()
    found.add_group(responses)
    assert found == expected and found.groups == expected.better + expected.worse
