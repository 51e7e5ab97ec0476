"""What responses were worth, by their lengths."""

import pytest

from rljob_runtime.trace.analyse import reward_by_length
from rljob_runtime.trace.analyse.cut_off import CutOff
from rljob_runtime.trace.analyse.requests import Attempt, Request
from rljob_runtime.trace.analyse.reward_by_length import RewardByLength
from rljob_runtime.trace.record.event_log import Event
from tests.support.runtime.events import event


def response(name: str, length: int, finish: str = "stop") -> Request:
    uid = int(name.split(".")[0]) if name[0].isdigit() else -1
    return Request(uid, name, 0, [Attempt("fast-0", 0.0, 1.0, length, finish)], length)


def scored(uid: int, *rewards: float | None) -> Event:
    return event("reward", 0, 1, "driver", uid=uid, rewards=list(rewards))


def test_means_on_both_sides_of_a_limit():
    """A response of as many tokens as the limit would not have been cut. Rewards may come steps later."""
    found = RewardByLength()
    found.add_step([response("1.0", 64), response("1.1", 65), response("2.1", 10)], [])
    found.add_step([response("2.0", 900)], [scored(1, 1.0, 0.5), scored(2, 0.25, 0.0)])
    assert found.means(64) == (0.5, 0.375)
    assert found.means(1024) == (0.4375, None)


def test_responses_that_were_cut_off_are_compared_with_others_of_their_group() -> None:
    found = RewardByLength()
    found.add_step([response("1.0", 64), response("1.1", 99, "length"), response("2.0", 99, "length")], [])
    found.add_step([response("2.1", 9)], [scored(1, 1.0, 0.5), scored(2, 0.25, 0.0), scored(3, 1.0)])
    assert found.cut_off == CutOff(better=1, worse=1)


@pytest.mark.parametrize(
    "events",
    [
        [],
        [scored(1, None)],
        # Of a run that did not record them, of another group, and of fewer responses than there are.
        [event("reward", 0, 1, "driver", uid=1)],
        [scored(2, 1.0)],
        [scored(1)],
    ],
)
def test_what_has_no_reward_does_not_count(events):
    found = RewardByLength()
    found.add_step([response("1.0", 64), response("fast-0@1.5", 64)], events)
    assert found.means(64) == (None, None)


def test_groups_that_never_get_rewards_are_forgotten(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(reward_by_length, "PENDING", 2)
    found = RewardByLength()
    found.add_step([response(f"{uid}.0", 64) for uid in range(4)], [])
    found.add_step([], [scored(uid, float(uid)) for uid in range(4)])
    assert found.means(64) == (2.5, None)
