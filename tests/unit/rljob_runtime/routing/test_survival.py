"""What responses still generate, by the hazards of all that have ended and all that run."""

import math
import random
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rljob_runtime.routing.survival import Survival

Draw = Callable[[random.Random], int]


def _two_kinds(r: random.Random) -> int:
    return r.randint(4900, 8192) if r.random() < 0.1 else r.randint(1, 2048)


FAMILIES: dict[str, Draw] = {
    "uniform": lambda r: r.randint(1, 4096),
    "of two kinds": _two_kinds,
    "geometric": lambda r: 1 + int(r.expovariate(1 / 2048)),
    "lognormal": lambda r: 1 + int(r.lognormvariate(7.4, 0.6)),
}


def drawn(family: str, count: int, seed: int = 0) -> list[int]:
    r = random.Random(seed)
    return sorted(FAMILIES[family](r) for _ in range(count))


def beyond(lengths: list[int], tokens: int) -> float:
    """Mean of what is beyond so many tokens, of the lengths that are longer."""
    longer = [length - tokens for length in lengths if length > tokens]
    return sum(longer) / len(longer)


def halfway(lengths: list[int], tokens: int) -> Survival:
    """All have begun at once, and run until they have so many tokens."""
    longer = sum(length > tokens for length in lengths)
    return Survival(lengths[: len(lengths) - longer], [tokens] * longer)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("part", [0.0, 0.3, 0.6, 0.8, 0.9])
def test_of_many_that_have_ended_it_is_the_mean_of_those_that_were_longer(family: str, part: float) -> None:
    many = drawn(family, 100_000, seed=1)
    tokens = many[int(part * len(many))] if part else 0
    found = Survival(drawn(family, 4096), []).remaining(tokens)
    assert found == pytest.approx(beyond(many, tokens), rel=0.1)


@pytest.mark.parametrize("family", ["uniform", "geometric", "lognormal"])
@pytest.mark.parametrize("part", [0.8, 0.9])
def test_in_a_first_batch_the_tail_goes_on_in_its_shape(family: str, part: float) -> None:
    """Nothing has ended that is longer than what runs."""
    many = drawn(family, 100_000, seed=1)
    tokens = many[int(part * len(many))]
    found = [halfway(drawn(family, 512, seed), tokens).remaining(tokens) for seed in range(20)]
    known = [each for each in found if each is not None]
    assert len(known) >= 16, "else the tail was outlived by chance"
    assert sum(known) / len(known) == pytest.approx(beyond(many, tokens), rel=0.35)


def test_with_uniform_lengths_less_remains_the_longer_a_response_is() -> None:
    lengths = drawn("uniform", 1024)
    found = [halfway(lengths, tokens).remaining(tokens) for tokens in (3200, 3600, 3900)]
    assert all(each is not None for each in found)
    assert found == sorted(found, key=lambda each: -(each or 0.0)) and (found[-1] or 0.0) < 300


TAILS = {
    # halvings of what is left, in tokens: the shape of the tail, by its last 16 ends
    "each as long as the one before": ((100, 100), 0.0),
    "longer": ((100, 150), math.log2(1.5) * 16 / 24),
    "shorter": ((100, 70), math.log2(0.7) * 16 / 24),
    "much longer: at most heavier than lognormal": ((100, 400), 0.5),
    "much shorter: at least uniform": ((100, 30), -1.0),
}


@pytest.mark.parametrize(("halvings", "shape"), TAILS.values(), ids=TAILS)
def test_a_tail_by_its_two_last_halvings(halvings: tuple[int, int], shape: float) -> None:
    """32 of 64 responses end at a length, 16 at a second, and 16 have come as far as that and run. The
    generalized Pareto tail by which half of those that were longer than the first are longer than the second
    as well."""
    early, late = halvings
    last = early + late
    survival = Survival([early] * 32 + [last] * 16, [last] * 16)
    scale = late / math.log(2) if shape == 0 else late * shape / (1 - 2.0**-shape)
    tail = scale / (1 - shape)
    assert survival.remaining(last) == pytest.approx(tail)
    assert survival.remaining(last + 20) == pytest.approx(tail + 20 * shape / (1 - shape))
    assert survival.remaining(0) == pytest.approx(early + 0.5 * late + 0.25 * tail)


def test_of_equal_lengths_the_rest_remains() -> None:
    survival = Survival([500] * 20, [])
    assert [survival.remaining(tokens) for tokens in (0, 100, 499)] == [500, 400, 9.98]
    assert survival.remaining(500) == 10, "longer than all: hardly anything"
    assert Survival([10] * 20, []).remaining(10) == 0.2, "nor is there a tail where all have ended"


def test_those_that_run_count_as_far_as_they_have_run() -> None:
    """Ten of 20 end at 100, and 5 of the other 10 are lost sight of at 150. Of the 5 that are left, too few
    to tell anything, nobody knows."""
    survival = Survival([100] * 15 + [200] * 9, [150] * 15)
    # 15 of 39 end at 100; of the 9 that are known beyond 150 all end at 200.
    assert survival.remaining(100) == 100
    assert survival.remaining(0) == pytest.approx((15 * 100 + 24 * 200) / 39)


@pytest.mark.parametrize(
    ("ended", "running"),
    [
        ([], []),
        ([], [50] * 40),
        ([10] * 3, []),
        (list(range(1, 60)), [60] * 41),
    ],
    ids=["nothing", "nothing ended", "too few", "more than a quarter run"],
)
def test_nothing_is_said_where_too_little_is_known(ended: list[int], running: list[int]) -> None:
    assert Survival(ended, running).remaining(60) is None


SHORT, LONG = list(range(60, 73)), list(range(510, 580, 5))
FEW = {
    # lengths of complete responses, tokens of those that run, of one more, and what remains of it
    "all have ended": (SHORT + LONG, [], 100, 445),
    "two run": (SHORT + LONG, [362, 362], 362, 183),
    "two of the longest run": (SHORT + LONG, [570, 572], 362, 185),
    "all of eight have ended": (LONG[:8], [], 362, 165),
    "near the end of the longest": (SHORT + LONG, [], 560, 11.2),
    "two have outlived them by far": (SHORT + LONG, [650, 650], 362, None),
    "two of the last ones have ended": (SHORT + LONG[:2], [570] * 6, 362, None),
    "more than half are left where they begin": ([40] * 2 + LONG[:5], [50] * 20, 362, None),
}


@pytest.mark.parametrize(("ended", "running", "tokens", "remaining"), FEW.values(), ids=FEW)
def test_of_a_few_dozen_the_last_ones_tell_where_they_end(
    ended: list[int], running: list[int], tokens: int, remaining: float | None
) -> None:
    """Of 32 and more the last eight are a quarter at most. Of fewer it is the last quarter of which nothing
    more is known, and four at least; where many run, more than a quarter are left there."""
    found = Survival(ended, running).remaining(tokens)
    assert found == (None if remaining is None else pytest.approx(remaining, rel=0.03))


def test_a_tail_that_was_outlived_is_not_believed() -> None:
    """Short responses of two kinds have all ended: those that run are not the last of them."""
    ended = list(range(1, 1001))
    assert Survival(ended, [1000] * 100).remaining(1000) is not None
    assert Survival(ended, [1100] * 100).remaining(1100) is None


@given(
    st.lists(st.integers(1, 5000), max_size=80),
    st.lists(st.integers(1, 5000), max_size=80),
    st.integers(0, 10_000),
)
def test_what_remains_is_a_number_of_tokens(ended: list[int], running: list[int], tokens: int) -> None:
    found = Survival(sorted(ended), sorted(running)).remaining(tokens)
    assert found is None or (math.isfinite(found) and found >= 0.02 * tokens)
