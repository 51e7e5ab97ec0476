"""How long drafts are worth it."""

import pytest

from rljob_runtime.engines.kept_shares import KeptShares


def told(minimum: float, drafted: int, kept: int, times: int = 200, match: int = 5) -> KeptShares:
    shares = KeptShares(minimum)
    for _ in range(times):
        shares.tell(match, drafted, kept)
    return shares


@pytest.mark.parametrize(
    ("minimum", "drafted", "kept", "length"),
    [
        (0.2, 4, 1, 2),  # half of the checked ones: 0.5^2 = 0.25
        (0.25, 4, 1, 2),
        (0.3, 4, 1, 1),
        (0.2, 4, 3, 5),  # 0.75^5 = 0.24
        (0.2, 10, 9, 15),  # 0.9^15 = 0.21
        (0.6, 4, 1, 0),
        (0.2, 4, 0, 0),
    ],
)
def test_a_draft_is_as_long_as_its_last_token_has_the_chance(
    minimum: float, drafted: int, kept: int, length: int
) -> None:
    assert told(minimum, drafted, kept, times=2000).length(5) == pytest.approx(length, abs=0)


def test_drafts_begin_long() -> None:
    assert KeptShares(0.2).length(3) == 15


def test_where_all_are_kept_drafts_grow() -> None:
    assert told(0.2, 8, 8).length(5) > 100
    assert told(0.2, 8, 8).share(5) < 1


def test_matches_of_about_the_same_length_are_counted_together() -> None:
    shares = told(0.2, 4, 0, match=4)
    assert shares.share(7) == shares.share(4) < 0.1
    assert shares.share(3) == shares.share(8) == 0.9


def test_what_is_not_worth_it_is_tried_now_and_then() -> None:
    shares = told(0.2, 4, 0)
    assert [shares.length(5) for _ in range(32)] == [*[0] * 15, 1] * 2


def test_new_texts_count_more_than_old_ones() -> None:
    shares = told(0.2, 1, 0, times=10_000)
    for _ in range(400):
        shares.tell(5, 1, 1)
    assert shares.share(5) > 0.5
