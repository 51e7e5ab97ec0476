"""What moved responses wait for where they go: by their first tokens, whenever these are told of."""

import pytest

from rljob_runtime.routing.move_times import MoveTimes

STEP = 0.01
ASSUMED = 0.01
"""What a token is taken for, as part of a step."""


@pytest.mark.parametrize("tokens", [1, 50], ids=["told at once", "told 49 steps later"])
@pytest.mark.parametrize("share", [0.001, 0.01, 0.1, 1.0])
def test_a_token_takes_what_is_left_of_the_time_beside_the_steps(share: float, tokens: int) -> None:
    times = MoveTimes()
    assert (times.share(ASSUMED), times.told(ASSUMED)) == (ASSUMED, False)
    for turn in range(40):
        times.given(1, "a", 1000, 100.0 * turn)
        now = 100.0 * turn + 1000 * share * STEP + tokens * STEP
        assert times.report(1, {"a": tokens, "b": 7}, STEP, STEP, now)
    assert times.told(ASSUMED)
    assert times.share(ASSUMED) == pytest.approx(share, rel=0.06)


@pytest.mark.parametrize(("assumed", "share", "told"), [(0.01, 0.03, False), (0.05, 0.05, True)])
def test_what_is_assumed_weighs_as_what_takes_a_step(assumed: float, share: float, told: bool) -> None:
    """A hundred tokens have taken five steps."""
    times = MoveTimes()
    times.given(1, "a", 100, 0.0)
    assert times.report(1, {"a": 1}, STEP, STEP, 100 * 0.05 * STEP + STEP)
    assert (times.share(assumed), times.told(assumed)) == (pytest.approx(share), told)


@pytest.mark.parametrize(
    ("before", "after", "counts"),
    [
        ([("a", 500)], [], True),
        ([("a", 0)], [], False),
        ([("a", 500)], [("b", 0)], False),
        ([("b", 0), ("a", 500)], [], False),
        ([("b", 500), ("a", 500)], [], False),
    ],
    ids=["alone", "one that begins", "another one comes", "another one waits", "two that move"],
)
def test_only_what_waited_alone_tells(
    before: list[tuple[str, int]], after: list[tuple[str, int]], counts: bool
) -> None:
    times = MoveTimes()
    for name, kv_tokens in (*before, *after):
        times.given(1, name, kv_tokens, 0.0)
    times.given(2, "c", 500, 0.0)
    assert times.report(1, {"a": 2}, STEP, STEP, 9.0) == counts
    assert not times.report(1, {"a": 3}, STEP, STEP, 10.0), "once"


def test_what_left_or_stood_still_tells_nothing() -> None:
    times = MoveTimes()
    for engine in (1, 2):
        times.given(engine, "a", 500, 0.0)
    times.left(1, "a")
    times.paused(2)
    assert not any(times.report(engine, {"a": 2}, STEP, STEP, 9.0) for engine in (1, 2))
