"""What of a step's groups is trained, and what is said of the rest."""

import statistics

import pytest

from rljob_api.algorithm import Advantage, Algorithm, ReinforcePlusPlus
from rljob_api.schedule import Schedule
from rljob_runtime.objective.advantages import estimator
from rljob_runtime.samples import Span
from rljob_runtime.trainer.batch import batches_of, describe, responses_of
from rljob_runtime.trainer.outline import GroupOutline, SampleOutline, decode_outlines, encode_outlines

CENTRED = estimator(Algorithm(normalize_by_std=False))
WHOLE = estimator(Algorithm())


def response(*lengths: tuple[int, int], reward: float = 1.0, failed: bool = False) -> SampleOutline:
    """Of spans with (version, tokens)."""
    spans, position = [], 0
    for version, length in lengths:
        spans.append(Span(version, position, position + length))
        position += length
    return SampleOutline(position, tuple(spans), reward, failed)


GROUP = GroupOutline(
    7,
    0,
    5,
    (
        response((2, 8), reward=0.0),
        response((2, 30), (3, 10), (4, 20)),
        response((4, 12), reward=0.0),
        response((1, 6), failed=True),
    ),
)


def test_a_response_is_trained_from_its_first_fresh_token_on() -> None:
    stale, fresh = responses_of([GROUP], CENTRED, oldest=3)
    assert (stale.item.sample, stale.context, stale.length, stale.item.tokens) == (1, 30, 30, 65)
    assert stale.drawn_with(4).tolist() == [False] * 10 + [True] * 20
    assert (fresh.item.sample, fresh.context, fresh.length) == (2, 0, 12)
    # The first response has no fresh token: it is not trained, and counts in the mean of 1/3.
    assert (stale.advantage, fresh.advantage) == pytest.approx((2 / 3, -1 / 3))


def test_without_a_bound_for_tokens_all_are_trained() -> None:
    found = responses_of([GROUP], CENTRED)
    assert [(each.context, each.length) for each in found] == [(0, 8), (0, 60), (0, 12)]
    assert describe([GROUP], 4)["masked"] is None


def test_what_is_masked_is_told_by_length() -> None:
    masked = describe([GROUP], 4, oldest=3)["masked"]
    assert masked.tokens == pytest.approx(38 / 80)
    assert masked.responses == pytest.approx(1 / 3)
    assert masked.oldest_trained == 1
    quarters = masked.shortest_quarter, masked.second_quarter, masked.third_quarter, masked.longest_quarter
    assert quarters == (1.0, 0.0, 0.5, 0.0), "three responses leave a quarter empty"


def test_a_step_of_stale_groups_trains_nothing() -> None:
    assert responses_of([GROUP], WHOLE, oldest=9) == []
    masked = describe([GROUP], 10, oldest=9)["masked"]
    assert (masked.tokens, masked.responses, masked.oldest_trained) == (1.0, 1.0, 0)


def rewarded(uid: int, *rewards: float | None) -> GroupOutline:
    return GroupOutline(
        uid, 0, 5, tuple(response((3, 4), reward=reward or 0.0, failed=reward is None) for reward in rewards)
    )


@pytest.mark.parametrize(
    ("groups", "distribution", "equal"),
    [
        ([rewarded(0, 0.0, 1.0), rewarded(1, 3.0, 3.0)], (0.0, 0.3, 2.0, 3.0, 3.0), 0.5),
        # Without a reward it counts nowhere, and a group that has none at all is not one of equal rewards.
        ([rewarded(0, -1.0, None, -1.0), rewarded(1, None, None)], (-1.0,) * 5, 0.5),
        # Its advantage is its reward.
        ([rewarded(0, 2.0)], (2.0,) * 5, 0.0),
        ([rewarded(0, *range(11))], (0.0, 1.0, 5.0, 9.0, 10.0), 0.0),
        ([rewarded(0, None)], (float("nan"),) * 5, 0.0),
        ([], (float("nan"),) * 5, 0.0),
    ],
)
def test_how_rewards_are_distributed(
    groups: list[GroupOutline], distribution: tuple[float, ...], equal: float
) -> None:
    told = describe(groups, 3)
    names = ("min", "p10", "median", "p90", "max")
    assert tuple(told[f"reward_{name}"] for name in names) == pytest.approx(distribution, nan_ok=True)
    assert told["equal_groups"] == equal


def test_parts_are_means_over_the_responses_that_have_them() -> None:
    def scored(parts: dict[str, float], metrics: dict[str, float | None], failed: int = 0) -> SampleOutline:
        return SampleOutline(4, (Span(3, 0, 4),), 1.0, False, parts, metrics, failed)

    groups = [
        GroupOutline(0, 0, 5, (scored({"b": 1.0, "a": 0.0}, {"x": 4.0}), scored({"a": 1.0}, {"x": None}, 1))),
        GroupOutline(1, 0, 5, (scored({"b": 2.0, "a": 2.0}, {"x": 8.0}), response((3, 4), failed=True))),
    ]
    told = describe(groups, 3)
    assert list(told["reward_parts"].items()) == [("a", 1.0), ("b", 1.5)]
    assert told["reward_metrics"] == {"x": 6.0}
    assert told["reward_values_failed"] == 1
    arrived = decode_outlines(encode_outlines(groups))
    assert describe(arrived, 3) == told


def test_what_was_cut_off_is_told() -> None:
    cut_off = SampleOutline(4, (Span(3, 0, 4),), 1.0, failed=True, cut_off=True)
    groups = [GroupOutline(0, 0, 5, (cut_off, response((3, 2)), response((3, 4)), response((3, 1))))]
    assert describe(groups, 3)["cut_off"] == 0.25
    assert describe(decode_outlines(encode_outlines(groups)), 3)["cut_off"] == 0.25
    assert describe([], 3)["cut_off"] == 0.0


def group(uid: int, *lengths: int, failed: bool = False) -> GroupOutline:
    """With a prompt of 5 tokens and fresh responses."""
    return GroupOutline(uid, 0, 5, tuple(response((3, length), failed=failed) for length in lengths))


@pytest.mark.parametrize(
    ("order", "expected"),
    [
        ("level", [[(10, 0), (10, 1), (13, 0)], [(11, 0), (12, 0), (12, 1)]]),
        ("data", [[(10, 0), (10, 1), (11, 0)], [(12, 0), (12, 1), (13, 0)]]),
        ("shortEnds", [[(11, 0), (13, 0)], [(10, 0), (10, 1), (12, 0), (12, 1)]]),
    ],
)
def test_batches_have_whole_groups(order: str, expected: list[list[tuple[int, int]]]) -> None:
    groups = [group(10, 40, 40), group(11, 60), group(12, 10, 10), group(13, 20)]
    schedule = Schedule(total_steps=1, prompts_per_batch=2, batches_per_step=2, batch_order=order)
    batches = batches_of(groups, schedule, CENTRED)
    assert [[(each.item.uid, each.item.sample) for each in batch] for batch in batches] == expected


def test_a_batch_of_which_nothing_is_trained_is_kept() -> None:
    """An update is made of nothing, so that the learning rate goes on as in any other step."""
    groups = [group(0, 8), group(1, 8, failed=True)]
    schedule = Schedule(total_steps=1, prompts_per_batch=1, batches_per_step=2)
    batches = batches_of(groups, schedule, CENTRED)
    assert [len(batch) for batch in batches] == [1, 0]


def test_a_groups_responses_are_compared_with_each_other_whatever_batch_they_are_in() -> None:
    groups = [GROUP, group(8, 100)]
    schedule = Schedule(total_steps=1, prompts_per_batch=1, batches_per_step=2)
    first, _ = batches_of(groups, schedule, WHOLE)
    assert first == responses_of([GROUP], WHOLE)


@pytest.mark.parametrize("baseline", [False, True])
def test_what_is_whitened_are_the_trained_tokens_of_the_whole_step(baseline: bool) -> None:
    """Over all updates, without tokens that are masked; a response of which nothing is trained counts in its
    group's mean alone."""
    groups = [GROUP, group(8, 100), GroupOutline(9, 0, 5, (response((4, 3), reward=-2.0),))]
    choice = Advantage(reinforce_plus_plus=ReinforcePlusPlus(baseline=baseline))
    schedule = Schedule(total_steps=1, prompts_per_batch=1, batches_per_step=3)
    batches = batches_of(groups, schedule, estimator(Algorithm(advantage=choice)), oldest=3)
    found = {(each.item.uid, each.item.sample): each for batch in batches for each in batch}
    mean = 1 / 3 if baseline else 0.0
    # Tokens that are trained, and what is whitened of each of them.
    expected = {(7, 1): (30, 1 - mean), (7, 2): (12, -mean), (8, 0): (100, 1.0), (9, 0): (3, -2.0)}
    assert {key: each.length for key, each in found.items()} == {key: n for key, (n, _) in expected.items()}
    tokens = [value for count, value in expected.values() for _ in range(count)]
    for key, (_, value) in expected.items():
        whitened = (value - statistics.mean(tokens)) / statistics.stdev(tokens)
        assert found[key].advantage == pytest.approx(whitened, rel=1e-6)
