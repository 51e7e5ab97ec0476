"""What became of groups: the counts sum, and what is said about losses."""

import math
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rljob_runtime.groups.counts import OVER_SAMPLING, GroupCounts, counts_in, in_words


def assert_sums(counts: GroupCounts) -> None:
    ended = counts.accepted + counts.refused + sum(counts.cancelled.values())
    assert counts.dispatched == ended + counts.open


@pytest.mark.parametrize(
    ("counts", "sentence"),
    [
        ({}, None),
        ({"dispatched": 8, "accepted": 8, "moved_requests": 3, "continued_requests": 2}, None),
        (
            {"cancelled": {"job resumed": 57}},
            "No prompt is lost: 57 groups interrupted when the job was resumed; their prompts are generated "
            "again.",
        ),
        (
            {"cancelled": {"job resumed": 3, "trainer restarted": 1}, "discarded": {"trainer restarted": 1}},
            "No prompt is lost: 4 groups interrupted when the job was resumed (3) and when the trainer was "
            "restarted (1), 1 finished group discarded when the trainer was restarted; their prompts are "
            "generated again.",
        ),
        (
            {"cancelled": {"job resumed": 2, "engine lost": 1}},
            "No prompt is lost: 3 groups interrupted when the job was resumed (2) and engine lost (1); their "
            "prompts are generated again.",
        ),
        (
            {"cancelled": {"a": 3}, "discarded": {"a": 12}, "rejected": {"timeout": 1, "error": 3}},
            "No prompt is lost: 3 groups interrupted (a), 12 finished groups discarded (a); their prompts "
            "are generated again. Not trained: 4 responses without a reward (error 3, timeout 1).",
        ),
        (
            {"rejected": {"b": 1, "c": 1, "timeout": 20, "a": 1}},
            "Not trained: 23 responses without a reward (timeout 20, a 1, b 1, c 1).",
        ),
        (
            {"accepted": 60, "refused": 20, "equal_rewards": 2, "rejected": {"timeout": 1}},
            "Refused: 20 groups whose rewards are all equal, 25% of the complete ones; 2 such were kept. Not "
            "trained: 1 response without a reward (timeout).",
        ),
        (
            {"accepted": 60, "refused": 20, "refused_pass_rate": 16, "outside_pass_rate": 1},
            "Refused: 4 groups whose rewards are all equal, 5% of the complete ones; 0 such were kept. "
            "Refused: 16 groups whose pass rate is outside the filter's, 20% of the complete ones; 1 such "
            "were kept.",
        ),
        (
            {"restarted_requests": 1, "dropped_tokens": 1300, "rerouted_requests": 5},
            "Begun anew on another engine: 1 request, without the 1,300 tokens that they had.",
        ),
        ({"rejected": {"timeout": 1200}}, "Not trained: 1,200 responses without a reward (timeout)."),
    ],
)
def test_interruptions_in_words(counts: dict[str, Any], sentence: str | None) -> None:
    assert in_words(GroupCounts(**counts)) == sentence


@pytest.mark.parametrize(
    ("before", "kept", "after"),
    [
        (
            {"dispatched": 10, "accepted": 10},
            10,
            {"dispatched": 10, "accepted": 10},
        ),
        (
            {"dispatched": 10, "accepted": 7, "open": 3},
            7,
            {"dispatched": 10, "accepted": 7, "cancelled": {"why": 3}},
        ),
        (
            {"dispatched": 10, "accepted": 7, "open": 3},
            4,
            {"dispatched": 10, "accepted": 7, "cancelled": {"why": 3}, "discarded": {"why": 3}},
        ),
        (
            {"dispatched": 10, "accepted": 7, "open": 3},
            8,
            {"dispatched": 10, "accepted": 8, "cancelled": {"why": 2}},
        ),
        (
            {"dispatched": 10, "accepted": 7, "refused": 3},
            7,
            {"dispatched": 10, "accepted": 7, "cancelled": {"why": 3}},
        ),
        (
            {"dispatched": 10, "accepted": 8, "discarded": {"why": 2}, "cancelled": {"why": 2}},
            6,
            {"dispatched": 10, "accepted": 8, "discarded": {"why": 2}, "cancelled": {"why": 2}},
        ),
    ],
    ids=[
        "all is kept",
        "under way",
        "trained since",
        "put had not ended",
        "refused since",
        "the second time",
    ],
)
def test_back_to_a_checkpoint(before: dict[str, Any], kept: int, after: dict[str, Any]) -> None:
    counts = GroupCounts(**before)
    counts.went_back(kept, 0, "why")
    assert counts == GroupCounts(**after)


Operations = st.lists(
    st.tuples(st.sampled_from(["dispatch", "accept", "refuse", "cancel", "save", "back"]), st.integers(1, 4)),
    max_size=60,
)


@given(Operations)
def test_the_counts_sum_whatever_happens(operations: list[tuple[str, int]]) -> None:
    """`held` stands for the groups that are trained or wait, `saved` for those of the newest checkpoint, some
    of them put but not accepted yet."""
    counts, saved, unaccepted, refused = GroupCounts(), 0, 0, (0, 0)
    for operation, number in operations:
        held = counts.accepted - sum(counts.discarded.values())
        if operation == "dispatch":
            counts.dispatch()
        elif operation == "accept" and counts.open:
            counts.accept()
        elif operation == "refuse" and counts.open:
            counts.refuse("pass_rate" if number % 2 else "equal_rewards")
        elif operation == "cancel" and counts.open >= number:
            counts.cancel("asked", number)
        elif operation == "save":
            unaccepted = min(counts.open, number)
            saved, refused = held + unaccepted, (counts.refused, counts.refused_pass_rate)
        elif operation == "back":
            counts.cancel("back", counts.open)
            counts.went_back(saved, refused[0], "back", refused[1])
            assert counts.open == 0 and (counts.refused, counts.refused_pass_rate) == refused
            assert counts.accepted - sum(counts.discarded.values()) == saved
        assert_sums(counts)


def test_a_line_of_metrics_holds_them_all() -> None:
    counts = GroupCounts(
        11, 5, 1, {"a": 3}, {"b": 2}, {"timeout": 1}, 4, 6, 3, refused=2, refused_pass_rate=1,
        equal_rewards=1, outside_pass_rate=3,
        rerouted_requests=5, fast_tokens=300, heavy_tokens=100, dropped_tokens=70,
    )  # fmt: skip
    row = msgspec.json.decode(msgspec.json.encode({"step": 3, **counts.metrics()}))
    assert row["groups"] == {
        "dispatched": 11, "accepted": 5, "open": 1, "refused": 2, "refused_pass_rate": 1,
        "equal_rewards": 1, "outside_pass_rate": 3, "cancelled": 3, "discarded": 2,
    }  # fmt: skip
    assert row["requests"] == {"moved": 4, "continued": 6, "restarted": 3, "rerouted": 5}
    assert row["generated"]["heavy_share"] == 0.25
    assert counts_in(row) == counts
    assert counts_in({"step": 3}) is None
    assert counts_in({**row, "cancelled": "many"}) is None


@pytest.mark.parametrize("missing", ["groups", "requests"])
def test_a_line_without_either_part_has_no_counts(missing: str) -> None:
    row = GroupCounts(dispatched=3).metrics()
    del row[missing]
    assert counts_in(row) is None


def test_what_a_line_does_not_say_is_nothing() -> None:
    assert counts_in({"groups": {"accepted": 3}, "requests": {}}) == GroupCounts(accepted=3)
    assert counts_in({"groups": {}, "requests": {"moved": 2}}) == GroupCounts(moved_requests=2)


def test_reasons_are_counted_apart() -> None:
    counts = GroupCounts(dispatched=9, open=9)
    for reason in ("timeout", "error", "timeout"):
        counts.reject(reason)
    counts.cancel("asked", 2)
    counts.cancel("engine lost", 1)
    assert counts.rejected == {"timeout": 2, "error": 1}
    assert counts.cancelled == {"asked": 2, "engine lost": 1}
    assert counts.open == 6


def test_a_copy_is_independent() -> None:
    counts = GroupCounts(9, 5, 1, {"a": 3}, {"b": 2}, {"timeout": 1}, 4, 6)
    copy = counts.copy()
    assert copy == counts
    counts.cancel("a", 1)
    counts.reject("timeout")
    counts.went_back(0, 0, "b")
    assert copy == GroupCounts(9, 5, 1, {"a": 3}, {"b": 2}, {"timeout": 1}, 4, 6)


def test_over_sampling_is_told_by_what_it_aborts_and_by_the_lengths_that_come_later() -> None:
    counts = GroupCounts(dispatched=5, open=5)
    assert "over_sampling" not in counts.metrics()
    counts.cancel(OVER_SAMPLING, 1)
    for lengths in ([10, 20], [30, 40], [20, 30]):
        counts.accept(lengths)
    counts.dispatch()
    counts.accept([100, 150], again=True)
    assert_sums(counts)
    # 25 tokens on average, and 50 with the group that was begun again.
    assert counts.metrics()["over_sampling"] == {"again": 1, "length_bias": 0.5}
    assert in_words(counts) == (
        "No prompt is lost: 1 group interrupted as the slowest of an over-sampled step; their prompts are "
        "generated again."
    )
    row = msgspec.json.decode(msgspec.json.encode(counts.metrics()))
    found = counts_in(row)
    assert found is not None and (found.again, found.cancelled) == (1, {"over-sampling": 1})


@pytest.mark.parametrize(
    ("kept", "again", "bias"),
    [
        ([[10, 20], [30]], [], 1.0),
        ([[10, 30]], [[60, 100]], 0.4),
        ([[40, 40]], [[40, 40]], 1.0),
        ([[60]], [[20, 10]], 2.0),
        ([], [[60, 100]], None),
        ([], [], None),
    ],
    ids=["none aborted", "short ones kept", "alike", "long ones kept", "none kept", "no response yet"],
)
def test_the_length_bias_of_over_sampling(
    kept: list[list[int]], again: list[list[int]], bias: float | None
) -> None:
    counts = GroupCounts(open=len(kept) + len(again))
    for lengths in kept:
        counts.accept(lengths)
    for lengths in again:
        counts.accept(lengths, again=True)
    assert math.isnan(counts.length_bias) if bias is None else counts.length_bias == bias


def test_what_accepted_groups_are_made_of_is_counted() -> None:
    counts = GroupCounts(dispatched=4, open=4)
    counts.accept()
    counts.accept([3, 4], again=True)
    counts.accept([5], equal_rewards=True, again=True)
    counts.accept([6, 7], equal_rewards=True, outside_pass_rate=True)
    assert (counts.accepted, counts.equal_rewards, counts.outside_pass_rate) == (4, 2, 1)
    assert (counts.responses, counts.response_tokens) == (5, 25)
    assert (counts.again, counts.again_responses, counts.again_tokens) == (2, 3, 12)


def test_generated_and_dropped_tokens_are_counted() -> None:
    counts = GroupCounts()
    for pool, tokens in (("fast", 3), ("heavy", 5), ("fast", 7), ("heavy", 11)):
        counts.generated(pool, tokens)
    for tokens in (2, 4):
        counts.begin_anew(tokens)
    assert (counts.fast_tokens, counts.heavy_tokens) == (10, 16)
    assert (counts.restarted_requests, counts.dropped_tokens) == (2, 6)


def test_counts_that_a_line_lacks_are_0() -> None:
    row = {"groups": {"accepted": 3}, "requests": {}, "over_sampling": {}, "generated": {}}
    assert counts_in(row) == GroupCounts(accepted=3)
