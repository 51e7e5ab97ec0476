"""Which requests an engine does nothing for."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from rljob_runtime.driver.request_silence import RequestSilence, RequestsLook, StuckRequest

EVERY = 30.0
SECONDS = 300.0
STILL, BESIDE, LATER = "0.0#1", "1.0#2", "2.0#3"


@dataclass
class Story:
    """What is seen of one engine, look by look. Unless it says otherwise the engine works, reports, and has
    generated more at each look."""

    silence: RequestSilence = field(default_factory=lambda: RequestSilence(SECONDS, EVERY))
    now: float = 1000.0
    tokens: int = 0
    reports: int = 0
    leaving: set[str] = field(default_factory=set)

    def look(
        self,
        still: Sequence[str] = (STILL,),
        moving: Sequence[str] = (),
        works: bool = True,
        reports: bool = True,
        grows: bool = True,
        asked: int | None = None,
        after: float = EVERY,
    ) -> list[StuckRequest]:
        """`still`: those that get no token; `moving`: those that do."""
        self.now += after
        self.tokens += 10 * grows
        self.reports += reports
        told = {**dict.fromkeys(still, 5), **dict.fromkeys(moving, self.tokens)}
        engine = RequestsLook(0, works, self.tokens, self.reports, asked, list(told), told)
        found = self.silence.stuck([engine], lambda _, name: name in self.leaving, self.now)
        self.leaving |= {each.request for each in found}
        return found


def first(looks: Sequence[list[StuckRequest]]) -> tuple[int, list[StuckRequest]] | None:
    """The first look in which something was found, and what."""
    return next(((number, found) for number, found in enumerate(looks) if found), None)


def test_one_that_stands_still_while_the_engine_goes_on_with_later_ones_leaves() -> None:
    story = Story()
    story.look(moving=[BESIDE])
    looks = [story.look(moving=[f"{look}.1#{look}"]) for look in range(1, 15)]
    # In its first look it is seen first: its time counts from there.
    assert first(looks) == (9, [StuckRequest(0, STILL, SECONDS, "leaves")])


def test_the_engine_is_at_fault_where_it_does_not_let_go_of_it() -> None:
    story = Story()
    looks = [story.look(moving=[f"{look}.1#{look}"]) for look in range(20)]
    assert [(number, found[0].verdict) for number, found in enumerate(looks) if found][:2] == [
        (10, "leaves"),
        (13, "kept"),
    ]


def test_the_engine_is_at_fault_where_it_does_not_let_go_of_one_that_routing_moved() -> None:
    story = Story(leaving={STILL})
    looks = [story.look(moving=[f"{look}.1#{look}"]) for look in range(20)]
    assert first(looks) == (13, [StuckRequest(0, STILL, SECONDS + 3 * EVERY, "kept")])


# In each: how the engine is seen in look 0, 1, 2, ...
LEFT_ALONE = {
    "others that were there before it stopped generate: they may hold the memory that it waits for": [
        {"moving": [BESIDE, f"{look}.1#{look}"]} for look in range(60)
    ],
    "the last one that was there before has just ended: that it goes on now is told in the next report": [
        *[{"moving": [BESIDE]}] * 20, {}, {}, {"still": [], "moving": [STILL]},
    ],
    "it gets a token now and then": [
        {"still": [], "moving": [STILL]} if look % 9 == 0 else {} for look in range(60)
    ],
    "the engine is paused": [{}] * 5 + [{"works": False}] * 60,
    "it stands still as a whole": [{"still": [STILL, BESIDE]}] + [
        {"still": [STILL, BESIDE], "grows": False, "reports": False, "asked": 10}
    ] * 60,
    "it stands still as a whole and says nothing": [{}] * 3 + [{"grows": False, "reports": False}] * 60,
    "it tells of what it generates only when that is complete": [{"reports": False}] * 60,
    "it generates what it does not tell of": [
        {"grows": False, "reports": False, "asked": 100 + look} for look in range(60)
    ],
    "the driver stood still": [{}] * 5 + [{"after": 10_000.0}] + [{}] * 2,
}  # fmt: skip


@pytest.mark.parametrize("name", LEFT_ALONE)
def test_left_alone(name: str) -> None:
    story = Story()
    assert first([story.look(**look) for look in LEFT_ALONE[name]]) is None  # type: ignore[arg-type]


def test_it_has_some_looks_to_go_on_after_the_last_one_that_was_there_before_has_ended() -> None:
    story = Story()
    looks = [story.look(moving=[BESIDE]) for _ in range(20)]
    looks += [story.look(moving=[f"{look}.1#{look}"]) for look in range(10)]
    assert first(looks) == (23, [StuckRequest(0, STILL, 22 * EVERY + EVERY, "leaves")])


def test_one_is_found_that_is_the_last_on_an_engine_that_lives() -> None:
    """It has nothing else to do any more, and says so when it is asked."""
    story = Story()
    looks = [story.look(moving=[BESIDE]) for _ in range(4)]
    looks += [story.look(grows=False, reports=False, asked=40) for _ in range(10)]
    assert first(looks) == (11, [StuckRequest(0, STILL, SECONDS, "leaves")])


def test_those_that_stand_still_together_do_not_wait_for_one_another() -> None:
    """One of the engines that an engine consists of hangs."""
    story = Story()
    looks = [story.look([STILL, BESIDE], [f"{look}.1#{look}"]) for look in range(15)]
    found = first(looks)
    assert found is not None and [each.request for each in found[1]] == [STILL, BESIDE]


def test_pauses_between_do_not_count_and_do_not_begin_its_time_anew() -> None:
    story = Story()
    looks = [story.look(moving=[f"{look}.1#{look}"], works=look % 3 != 2) for look in range(50)]
    found = first(looks)
    assert found is not None and found[0] == 28, "one of three looks follows another one at which it worked"


def test_a_response_may_stand_still_for_twice_as_long_each_time_that_it_was_taken_out() -> None:
    story, stays = Story(), []
    for attempt in range(3):
        looks = [story.look([f"0.0#{attempt}9"], [f"{attempt}{look}.1#1"]) for look in range(50)]
        found = first(looks)
        assert found is not None
        stays.append(found[0])
        # On another engine from here on.
        story.silence._seen.clear()
    assert stays == [10, 20, 40]


def test_where_some_stood_still_for_long_and_went_on_others_may_too() -> None:
    """A prompt of which nothing is told takes so long here."""
    story = Story()
    for look in range(9):
        story.look(moving=[f"{look}.1#{look}"])
    story.look([], [STILL])
    looks = [story.look([LATER], [f"{look}.1#{look}"]) for look in range(30)]
    found = first(looks)
    assert found is not None and found[0] == 16, "twice the 8 looks that the first one stood still"


@pytest.mark.parametrize(
    ("quiet", "more", "found_in"),
    [
        pytest.param(60, {}, 16, id="remembered: the first one stood still for 8 looks"),
        pytest.param(75, {}, 10, id="forgotten meanwhile: after 80 looks"),
        pytest.param(100, {}, 10, id="forgotten"),
        pytest.param(100, {"works": False}, 16, id="no time in which engines do not work counts"),
        pytest.param(60, {"after": 10_000.0}, 10, id="a driver that stood still saw two looks' time each"),
        pytest.param(30, {"after": 10_000.0}, 16, id="and no more"),
    ],
)
def test_how_long_some_stood_still_that_went_on_is_not_remembered_for_ever(
    quiet: int, more: dict[str, Any], found_in: int
) -> None:
    """An engine's first prompts, while it compiles, say nothing of those of the next day."""
    story = Story()
    for look in range(9):
        story.look(moving=[f"{look}.1#{look}"])
    story.look([], [STILL])
    for look in range(quiet):
        story.look([], [f"{look}.2#{look}"], **more)
    found = first([story.look([LATER], [f"{look}.3#{look}"]) for look in range(40)])
    assert found is not None and found[0] == found_in


def test_an_engine_on_which_that_happens_again_and_again_is_at_fault() -> None:
    story = Story()
    verdicts = []
    for wave in range(3):
        names = [f"{wave}.7#{wave}", f"{wave}.8#{wave}"]
        looks = [story.look(names, [f"{wave}{look}.1#1"]) for look in range(11)]
        verdicts.append([each.verdict for each in looks[-1]])
    assert verdicts == [["leaves"] * 2, ["leaves"] * 2, ["again"] * 2]
