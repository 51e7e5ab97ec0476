"""How many drafted tokens a step tries."""

import pytest

from rljob_runtime.engines.step_drafts import StepDrafts

LONGEST, AT_MOST = 6, 4


@pytest.mark.parametrize(
    ("running", "kept", "count"),
    [
        (0, 6, 0),
        (1, 6, LONGEST),
        (AT_MOST, 6, LONGEST),
        (AT_MOST + 1, 6, 0),
        (1, 1, 2),  # half of the checked ones: 0.5^2 = 0.25
        (1, 0, 0),
    ],
)
def test_a_step_tries_what_is_worth_it_while_few_requests_run(running: int, kept: int, count: int) -> None:
    drafts = StepDrafts(LONGEST, 0.2, AT_MOST)
    for _ in range(500):
        drafts.tell(6, kept)
    assert drafts.count(running) == count
    assert (drafts.tried, drafts.kept) == (500 * 6, 500 * kept)


def test_drafts_begin_long_and_one_token_is_tried_now_and_then_where_none_is_kept() -> None:
    drafts = StepDrafts(LONGEST, 0.2, AT_MOST)
    assert drafts.count(2) == LONGEST
    for _ in range(50):
        drafts.tell(1, 0)
    counts = [drafts.count(2) for _ in range(64)]
    assert (counts.count(1), counts.count(0)) == (4, 60)
    for _ in range(500):
        drafts.tell(1, 1)
    assert drafts.count(2) == LONGEST
