"""Mean steps between reports of progress, and which reports tell none."""

from collections.abc import Sequence
from dataclasses import dataclass

import pytest

from rljob_runtime.routing.mean_steps import MeanStep, MeanSteps


@dataclass(frozen=True)
class Said:
    """A report at a time: tokens of the requests a, b, c, ..., and what was prefilled."""

    at: float
    tokens: str
    prefilled: int = 0


def steps(said: Sequence[Said]) -> list[MeanStep | None]:
    """What each report tells; tokens are "a5 b7"."""
    found = MeanSteps()
    return [
        found.report(1, {each[0]: int(each[1:]) for each in one.tokens.split()}, 100.0, one.prefilled, one.at)
        for one in said
    ]


def step(seconds: float, running: int, prefilled: float = 0.0) -> MeanStep:
    return MeanStep(pytest.approx(seconds), running, 100.0, pytest.approx(prefilled))  # type: ignore[arg-type]


TABLE = {
    "ten steps of 0.1 s": ([Said(0, "a5 b5"), Said(1, "a15 b15")], [None, step(0.1, 2)]),
    "40 tokens prefilled in them": (
        [Said(0, "a5 b5", 7), Said(1, "a15 b15 c3", 47)],
        [None, step(0.1, 2, 4.0)],
    ),
    "a step that is longer than three reports": (
        [Said(0, "a5"), Said(1, "a6"), Said(2, "a6"), Said(3, "a6"), Said(4, "a7")],
        [None, step(1.0, 1), None, None, step(3.0, 1)],
    ),
    "but not while it may be computing anew what an update made stale": (
        [Said(0, "a5"), Said(1, "a5"), Said(2, "a7")],
        [None, None, step(0.5, 1)],
    ),
    "what is being prefilled is waited for": (
        [Said(0, "a5 b5 c5"), Said(1, "a15 b15 c15 d0", 0), Said(2, "a20 b20 c20 d2", 40)],
        [None, None, step(2 / 15, 3, 40 / 15)],
    ),
    "not where few would be there still": (
        [Said(0, "a5 b5 c5"), Said(1, "a15 b15 d0"), Said(2, "a25 b25 d9", 40)],
        [None, None, None],
    ),
    "what was prefilled before the first report in part is not taken for all of it": (
        [Said(0, "a5 b5 c0"), Said(1, "a15 b15 c9", 40), Said(2, "a25 b25 c19", 40)],
        [None, None, step(0.1, 3)],
    ),
    "a prefill that is longer than two reports, of as many as run": (
        [
            Said(0, "a5 b5"),
            Said(1, "a15 b15 c0 d0"),
            Said(2, "a15 b15 c0 d0"),
            Said(3, "a15 b15 c0 d0"),
            Said(4, "a25 b25 c10 d10", 600),
        ],
        [None, None, None, None, step(4 / 20, 3, 600 / 20)],
    ),
    "one that goes on beside others that come to it": (
        [Said(0, "a5"), Said(1, "a15 b0"), Said(2, "a15 b0 c0 d0"), Said(3, "a25 b10 c10 d10", 600)],
        [None, None, None, step(3 / 20, 2, 600 / 20)],
    ),
    "of which nothing is told": (
        [Said(0, "a5"), Said(1, "a15 b0"), Said(2, "a15 b0"), Said(3, "a25 b10"), Said(4, "a35 b20")],
        [None, None, None, None, step(0.1, 2)],
    ),
    "one where all but one have ended": (
        [
            Said(0, "a5 b5 c5 e5"),
            Said(1, "a15 b15 c15 e15 d0"),
            Said(2, "a15 b15 c15 e15 d0"),
            Said(3, "a35 d20", 90),
        ],
        [None, None, None, step(0.1, 3, 90 / 30)],
    ),
    "an engine that tells less than before": (
        [Said(0, "a5", 50), Said(1, "a15", 20)],
        [None, step(0.1, 1)],
    ),
    "two reports at a time": ([Said(1, "a5"), Said(1, "a15")], [None, None]),
    "tokens that are taken back": ([Said(0, "a5"), Said(1, "a3")], [None, None]),
    "a time that goes back": ([Said(1, "a5"), Said(0, "a15")], [None, None]),
}


@pytest.mark.parametrize("case", TABLE)
def test_reports_and_the_steps_that_they_tell(case: str) -> None:
    said, expected = TABLE[case]
    assert steps(said) == expected


def test_a_prefill_of_many_reports_is_one_step() -> None:
    """An engine that stands still for longer than it has patience."""
    said = [Said(0, "a5"), *(Said(at, "a15 b0") for at in range(1, 50)), Said(50, "a25 b10", 400)]
    assert steps(said)[-1] == step(50 / 20, 2, 400 / 20)


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ([Said(1, "a0 b0"), Said(3, "a10 b10", 60)], [None, step(0.3, 2, 5.0)]),
        ([Said(1, "a0 b0"), Said(3, "a9 b10", 60)], [None, step(0.3, 2, 5.0)]),
        ([Said(3, "a10 b10", 60)], [step(0.3, 2, 5.0)]),
        ([Said(1, "a0 b0"), Said(2, "a5 b0", 40), Said(3, "a10 b2", 60)], [None, None, step(0.3, 1, 5.0)]),
        ([Said(1, "a0 b0"), Said(3, "a10", 60)], [None, step(0.3, 2, 5.0)]),
        ([Said(3, "a10 b10", 10), Said(4, "a20 b20", 10)], [None, step(0.1, 2)]),
    ],
    ids=[
        "that is longer than a report", "that is divided", "that is shorter", "one after the other",
        "after which one ends at once", "of which nothing is told",
    ],
)  # fmt: skip
def test_the_first_prefill_of_an_engine_that_had_nothing_to_do(
    said: Sequence[Said], expected: Sequence[MeanStep | None]
) -> None:
    """It had prefilled ten tokens when it got the first request at 0 s."""
    found = MeanSteps()
    found.began(1, 10, 0.0)
    assert [
        found.report(1, {each[0]: int(each[1:]) for each in one.tokens.split()}, 100.0, one.prefilled, one.at)
        for one in said
    ] == expected


def test_what_ends_before_the_first_report_is_not_measured() -> None:
    """Nobody knows for how long it has run; once that report has come, it does not matter."""
    for early in (True, False):
        found = MeanSteps()
        found.began(1, 0, 0.0)
        if early:
            found.ended(1)
        assert found.report(1, {"a": 0, "b": 0}, 100.0, 0, 1.0) is None
        found.ended(1)
        assert (found.report(1, {"a": 10, "b": 10}, 100.0, 50, 3.0) is None) == early
    found.ended(2)


def test_where_requests_always_wait_in_the_engine_steps_are_told_after_a_while() -> None:
    """Its cache is full: one of four has no token yet, whenever it reports, and begins later."""
    said = []
    for turn in range(200):
        tokens = [f"{chr(97 + each)}{10 * turn + 1}" for each in range(12)]
        said.append(Said(turn, " ".join([*tokens, f"{chr(200 + turn)}0", f"{chr(199 + turn)}5"]), 50 * turn))
    told = [place for place, found in enumerate(steps(said)) if found is not None]
    assert 20 < told[0] < 40 and told[1:] == list(range(told[0] + 1, 200))


def test_engines_are_measured_apart_and_a_pause_begins_anew() -> None:
    found = MeanSteps()
    assert found.report(1, {"a": 5}, 100.0, 0, 0.0) is None
    assert found.report(2, {"a": 15}, 100.0, 0, 1.0) is None
    found.paused(1)
    assert found.report(1, {"a": 15}, 100.0, 0, 1.0) is None
    assert found.report(2, {"a": 35}, 100.0, 0, 2.0) == step(0.05, 1)
