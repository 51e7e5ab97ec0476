"""When prompts that wait begin, and what steps cost by an engine's own times of them."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rljob_runtime.engines.prefill_gate import (
    LOOK_EVERY,
    LOOK_STEPS,
    MOST_SECONDS,
    MOST_STEPS,
    Costs,
    PrefillGate,
    Queue,
    StepTimes,
    Waited,
    admits,
)

TWICE = Costs(pure=0.010, extra=0.020)
"""A step with a prompt costs two further ones of each running request."""
BEGUN = Waited()


@pytest.mark.parametrize(
    ("queue", "waited", "costs", "looking", "expected"),
    [
        pytest.param(Queue(100, 1), BEGUN, TWICE, False, False, id="the first step of one"),
        pytest.param(Queue(100, 1), Waited(199, 19, 8.9), TWICE, False, False, id="a place less than that"),
        pytest.param(Queue(100, 1), Waited(200, 20, 8.9), TWICE, False, True, id="the price"),
        pytest.param(Queue(50, 1), Waited(100, 20, 8.9), TWICE, False, True, id="fewer run: a lower price"),
        pytest.param(Queue(100, 9), Waited(199, 2, 8.9), TWICE, False, False, id="many wait, for two steps"),
        pytest.param(Queue(100, 1), BEGUN, Costs(0.01, 0.0), False, True, id="prompts cost nothing"),
        pytest.param(Queue(0, 1), BEGUN, TWICE, False, True, id="nothing runs"),
        pytest.param(Queue(100, 1, at_once=True), BEGUN, TWICE, True, True, id="must not wait"),
        pytest.param(Queue(100, 1), Waited(63, MOST_STEPS, 8.9), TWICE, False, True, id="steps enough"),
        pytest.param(Queue(100, 1), Waited(63, MOST_STEPS - 1, 8.9), TWICE, False, False, id="a step less"),
        pytest.param(Queue(100, 1), Waited(1, 1, 9.0 - MOST_SECONDS), TWICE, False, True, id="long enough"),
        pytest.param(Queue(100, 1), Waited(1, 1, 9.1 - MOST_SECONDS), TWICE, False, False, id="less long"),
        pytest.param(Queue(100, 9, room=1), BEGUN, TWICE, False, False, id="room for one"),
        pytest.param(Queue(100, 9, room=0), BEGUN, TWICE, True, True, id="no room"),
        pytest.param(Queue(100, 1), BEGUN, None, False, True, id="costs are not known"),
        pytest.param(Queue(100, 1), Waited(1, 1, 9.0), None, True, False, id="nor steps without prompts"),
        pytest.param(Queue(100, 1), Waited(64, MOST_STEPS, 8.9), None, True, True, id="they are never seen"),
    ],
)
def test_what_begins(
    queue: Queue, waited: Waited, costs: Costs | None, looking: bool, expected: bool
) -> None:
    assert admits(queue, waited, costs, looking, now=9.0) is expected


def test_waiting_is_summed_up_from_its_first_step_on() -> None:
    waited = Waited().one_more(2, 5.0).one_more(3, 6.0)
    assert waited == Waited(lost=5, steps=2, since=5.0)


def seen(pure: Sequence[float], mixed: Sequence[tuple[int, float]]) -> StepTimes:
    times = StepTimes()
    for tokens, seconds in mixed:
        times.add(tokens, seconds)
    for seconds in pure:
        times.add(0, seconds)
    return times


def line(*tokens: int) -> list[tuple[int, float]]:
    """Steps of 30 ms, and 0.1 ms for each token of a prompt."""
    return [(each, 0.030 + 0.0001 * each) for each in tokens]


@pytest.mark.parametrize(
    ("pure", "mixed", "extra"),
    [
        pytest.param([0.01] * 4, line(130, 260, 390, 520), 0.020, id="a line"),
        pytest.param([0.01] * 4, [*line(130, 260, 390, 520), (130, 9.9)], 0.020, id="one was held up"),
        pytest.param([0.01, 0.01, 0.01, 5.0], line(1, 2, 3, 400), 0.020, id="so was one without a prompt"),
        pytest.param([0.01] * 4, [(130, 0.035)] * 4, 0.025, id="all of one length"),
        pytest.param([0.01] * 4, [(100, 0.05), (200, 0.04), (300, 0.03), (400, 0.02)], 0.025, id="it falls"),
        pytest.param([0.05] * 4, line(130, 260, 390, 520), 0.0, id="cheaper than without"),
    ],
)
def test_what_a_prompt_costs(pure: Sequence[float], mixed: Sequence[tuple[int, float]], extra: float) -> None:
    found = seen(pure, mixed).costs()
    assert found is not None and found.extra == pytest.approx(extra)


@pytest.mark.parametrize(
    ("times", "looking"),
    [
        pytest.param(seen([0.01] * 4, line(1, 2, 3)), False, id="few with prompts"),
        pytest.param(seen([0.01] * 3, line(*range(1, LOOK_EVERY - 2))), True, id="few without"),
        pytest.param(seen([], line(*range(1, LOOK_EVERY + LOOK_STEPS))), True, id="it goes on looking"),
        pytest.param(seen([], line(*range(1, LOOK_EVERY + LOOK_STEPS + 1))), False, id="not all the time"),
        pytest.param(seen([0.01] * 600, line(1, 2, 3, 4)), False, id="those with prompts are long ago"),
        pytest.param(seen([], []), False, id="none"),
    ],
)
def test_where_costs_are_not_known(times: StepTimes, looking: bool) -> None:
    assert times.costs() is None and times.looking is looking


def test_only_the_latest_steps_count() -> None:
    times = seen([0.01] * 9, line(1, 2, 3, 4))
    for seconds in [0.02] * 40:
        times.add(0, seconds)
    found = times.costs()
    assert found is not None and found.pure == 0.02


def test_costs_follow_what_is_seen() -> None:
    times, found = seen([0.01] * 9, line(1, 2, 3, 4)), []
    for tokens, seconds in [(0, 0.01), *[(9, 0.05)] * 32, *[(0, 0.02)] * 500, *[(9, 0.09)] * 5]:
        times.add(tokens, seconds)
        if (costs := times.costs()) is not None:
            found.append((costs.pure, round(costs.extra, 4)))
    # Of those with prompts 32 are looked at, and none that is older than 512 steps.
    assert found[0] == (0.01, 0.02) and (0.01, 0.04) in found and found[-1] == (0.02, 0.03)
    assert times._mixed[0][0] > times._steps - 512


@dataclass
class Engine:
    """One that is full: as many requests as it has places for are there all the time, each with a number of
    steps to go. Whoever ends is replaced by one that waits until the gate lets it begin."""

    places: int
    lengths: Sequence[int]
    pure: float = 0.012
    extra: float = 0.018
    a_token: float = 2e-6
    prompt: int = 130
    gated: bool = True
    gate: PrefillGate = field(default_factory=PrefillGate)
    now: float = 0.0
    made: int = 0
    begun: int = 0
    waits: list[float] = field(default_factory=list)
    steps_waited: list[int] = field(default_factory=list)

    def run(self, steps: int) -> float:
        """Tokens a second."""
        left = [self._next() * (place + 1) // self.places + 1 for place in range(self.places)]
        waiting: list[tuple[float, int]] = []
        for step in range(steps):
            queue = Queue(len(left), min(len(waiting), self.places - len(left)))
            new: list[int] = []
            if not self.gated or self.gate.admits(queue, self.now):
                self.waits += [self.now - since for since, _ in waiting]
                self.steps_waited += [step - first for _, first in waiting]
                new = [self._next() for _ in waiting]
                waiting = []
                if new:
                    self.gate.began()
            tokens = self.prompt * len(new)
            seconds = self.pure + (self.extra + self.a_token * tokens if new else 0.0)
            self.now += seconds
            self.gate.ended(tokens, seconds)
            self.made += len(left) + len(new)
            left = [each - 1 for each in left + new if each > 1]
            waiting += [(self.now, step + 1)] * (self.places - len(left) - len(waiting))
        return self.made / self.now

    def _next(self) -> int:
        self.begun += 1
        return self.lengths[self.begun % len(self.lengths)]


HEAVY_TAILED = [int(min(1024, 218 * math.exp(0.9 * (index * 0.618 % 1 * 4 - 2)))) for index in range(1, 400)]


def test_a_full_engine_gets_most_of_its_speed_back() -> None:
    free = Engine(512, HEAVY_TAILED, gated=False).run(3000)
    gated = Engine(512, HEAVY_TAILED)
    assert gated.run(3000) > 1.6 * free
    # Of a step that only decodes with all places taken, as if there were no prompts.
    assert gated.made / gated.now > 0.85 * 512 / gated.pure
    assert max(gated.waits) < MOST_SECONDS


@pytest.mark.parametrize("places", [1, 8, 64, 512])
def test_it_costs_next_to_nothing_where_there_is_nothing_to_gain(places: int) -> None:
    free = Engine(places, HEAVY_TAILED, extra=0.0, gated=False).run(3000)
    assert Engine(places, HEAVY_TAILED, extra=0.0).run(3000) > 0.99 * free


@given(
    places=st.integers(1, 40),
    lengths=st.lists(st.integers(1, 200), min_size=1, max_size=20),
    pure=st.floats(1e-4, 0.5),
    extra=st.floats(0.0, 2.0),
)
def test_nobody_starves_and_little_is_lost(
    places: int, lengths: Sequence[int], pure: float, extra: float
) -> None:
    """Whatever requests are like: half of what an engine does without a gate is kept, as is said of rent or
    buy, but for steps in which it looks."""
    free = Engine(places, lengths, pure, extra, gated=False).run(300)
    gated = Engine(places, lengths, pure, extra)
    assert gated.run(300) >= 0.45 * free
    assert max(gated.steps_waited, default=0) <= MOST_STEPS
    longest = pure + extra + gated.a_token * gated.prompt * places
    assert max(gated.waits, default=0.0) <= MOST_SECONDS + 2 * longest


def test_what_finds_no_memory_is_not_held_back_anew() -> None:
    gate = PrefillGate()
    for tokens, seconds in [*line(1, 2, 3, 4), *[(0, 0.01)] * 4]:
        gate.ended(tokens, seconds)
    asked = [gate.admits(Queue(4, 2), now=0.0) for _ in range(8)]
    assert asked == [False] * 4 + [True] * 4
    gate.began()
    assert not gate.admits(Queue(4, 2), now=0.0)


def test_a_place_that_there_is_no_memory_for_costs_nothing() -> None:
    gate = PrefillGate()
    for tokens, seconds in [*line(1, 2, 3, 4), *[(0, 0.01)] * 4]:
        gate.ended(tokens, seconds)
    rooms = [2, 2, 0, 1, 1, 9, 9, 9]
    # What waited before there was no memory has waited.
    asked = [gate.admits(Queue(4, 3, room=room), now=0.0) for room in rooms]
    assert asked == [False, False, True, False, False, False, True, True]


def test_waiting_is_over_where_nobody_waits_any_more() -> None:
    gate = PrefillGate()
    for tokens, seconds in [*line(1, 2, 3, 4), *[(0, 0.01)] * 4]:
        gate.ended(tokens, seconds)
    assert [gate.admits(Queue(4, count), now=0.0) for count in (7, 0, 7)] == [False, True, False]
