"""Which engine has fallen silent."""

from collections.abc import Sequence

import pytest

from rljob_runtime.driver.engine_silence import EngineLook, EngineSilence, SilentEngine

EVERY = 10
SECONDS = 60
A, B = 0, 1


class Story:
    """What is seen of two engines, look by look."""

    def __init__(self) -> None:
        self.silence = EngineSilence(SECONDS, EVERY)
        self.now = 1000.0
        self.found: list[SilentEngine] = []

    def look(
        self,
        a: EngineLook | None,
        b: EngineLook | None,
        asked: dict[int, int] | None = None,
        after: float = EVERY,
    ) -> list[SilentEngine]:
        self.now += after
        engines = [each for each in (a, b) if each is not None]
        return self.silence.silent(engines, asked or {}, self.now)


def works(number: int, tokens: int) -> EngineLook:
    return EngineLook(number, True, tokens)


def rests(number: int, tokens: int) -> EngineLook:
    """It is paused, starts, drains, or has nothing to do."""
    return EngineLook(number, False, tokens)


def numbers(found: Sequence[SilentEngine]) -> list[int]:
    return [each.number for each in found]


def test_one_that_has_requests_and_generates_nothing_while_others_do_is_silent() -> None:
    story = Story()
    looks = [story.look(works(A, 7), works(B, look)) for look in range(8)]
    # In the first look it is seen first: its time counts from there.
    assert looks == [*[[]] * 6, [SilentEngine(A, 60.0)], [SilentEngine(A, 70.0)]]


# In each: what is seen of A in look 1, 2, ..., while B generates.
LEFT_ALONE = {
    "a token now and then, by what it tells": [works(A, look // 5) for look in range(40)],
    "it is paused": [rests(A, 7)] * 40,
    "it works less than that in all": [works(A, 7)] * 6 + [rests(A, 7)] * 34,
    "it is new": [None] * 35 + [works(A, 0)] * 5,
}


@pytest.mark.parametrize("story", LEFT_ALONE)
def test_left_alone(story: str) -> None:
    watched = Story()
    looks = [watched.look(a, works(B, look)) for look, a in enumerate(LEFT_ALONE[story])]
    assert not any(looks)


def test_a_token_now_and_then_by_what_it_says_when_it_is_asked() -> None:
    story = Story()
    looks = [story.look(works(A, 7), works(B, look), asked={A: 100 + look // 5}) for look in range(40)]
    assert not any(looks)


def test_one_that_says_the_same_or_less_has_not_moved_by_that() -> None:
    story = Story()
    looks = [story.look(works(A, 7), works(B, look), asked={A: 99 + look % 2}) for look in range(7)]
    assert numbers(looks[-1]) == [A]


def test_pauses_between_do_not_count_and_do_not_begin_its_time_anew() -> None:
    """As weight updates come, more often than an engine may be silent."""
    story = Story()
    states = [works(A, 7), works(A, 7), rests(A, 7)] * 6 + [works(A, 7)] * 2
    looks = [story.look(a, works(B, look)) for look, a in enumerate(states)]
    # One of three looks follows another one at which it worked.
    assert [look for look, found in enumerate(looks) if found] == [16, 18, 19]


def test_where_nobody_generates_it_is_not_one_engine() -> None:
    story = Story()
    assert not any(story.look(works(A, 7), works(B, 7)) for _ in range(40))


def test_where_all_stood_still_the_first_to_go_on_does_not_show_up_the_others() -> None:
    story = Story()
    both = [story.look(works(A, 7), works(B, 7)) for _ in range(40)]
    assert not any(both)
    assert story.look(works(A, 7), works(B, 8)) == []
    assert numbers(story.look(works(A, 7), works(B, 9))) == [A]


def test_one_whose_others_have_nothing_to_do_any_more_is_silent_all_the_same() -> None:
    """They went on after it had stopped, and then waited for what it holds."""
    story = Story()
    looks = [story.look(works(A, 7), works(B, look) if look < 3 else rests(B, 2)) for look in range(7)]
    assert numbers(looks[-1]) == [A]


def test_a_driver_that_stood_still_itself_has_not_heard_them() -> None:
    story = Story()
    for look in range(3):
        story.look(works(A, 7), works(B, look))
    assert story.look(works(A, 7), works(B, 2), after=10_000) == []


def test_only_those_are_asked_of_whom_nothing_else_tells() -> None:
    story = Story()
    first = [works(A, 7), works(B, 7)]
    assert story.silence.to_ask(first) == [], "there is nothing to compare it with"
    story.look(*first)
    assert story.silence.to_ask([works(A, 7), works(B, 8)]) == [A]
    assert story.silence.to_ask([rests(A, 7), works(B, 7)]) == [B]


def test_who_stands_still() -> None:
    story = Story()
    assert not story.silence.stood_still(A)
    story.look(works(A, 7), None)
    assert not story.silence.stood_still(A)
    story.look(works(A, 7), works(B, 0))
    assert story.silence.stood_still(A) and not story.silence.stood_still(B)
    story.look(works(A, 8), works(B, 0))
    assert not story.silence.stood_still(A) and story.silence.stood_still(B)
