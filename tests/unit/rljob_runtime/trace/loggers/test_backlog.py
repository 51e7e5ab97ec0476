"""What waits for a logger: order, bound, when it is tried again, and how each point ends."""

from collections import deque

from hypothesis import given
from hypothesis import strategies as st

from rljob_runtime.trace.loggers.answers import Answer, Next, next_after
from rljob_runtime.trace.loggers.backlog import Backlog, Point


def backlog(most: int, steps: int) -> Backlog:
    found = Backlog(most)
    for step in range(steps):
        found.add(Point(step, 0.0, {}))
    return found


def steps(points: list[Point]) -> list[int]:
    return [point.step for point in points]


def test_points_leave_in_order_a_hundred_at_a_time() -> None:
    waiting = backlog(1000, 250)
    seen = []
    while batch := waiting.batch():
        seen.append(steps(batch))
        waiting.ended(Next.GO_ON)
    assert [len(each) for each in seen] == [100, 100, 50]
    assert [step for each in seen for step in each] == list(range(250))
    assert (waiting.lost, waiting.failures) == (0, 0)


def test_of_too_many_the_oldest_are_left_out() -> None:
    waiting = backlog(3, 5)
    assert steps(waiting.batch()) == [2, 3, 4]
    assert waiting.lost == 2


def test_what_comes_while_a_batch_is_sent_is_the_next_one() -> None:
    waiting = backlog(10, 2)
    waiting.batch()
    waiting.add(Point(2, 0.0, {}))
    waiting.ended(Next.GO_ON)
    assert steps(waiting.batch()) == [2]


def test_points_left_out_while_they_are_sent_are_not_taken_from_others() -> None:
    waiting = backlog(3, 3)
    waiting.batch()
    for step in (3, 4):
        waiting.add(Point(step, 0.0, {}))
    waiting.ended(Next.GO_ON)
    assert steps(waiting.batch()) == [3, 4]
    assert waiting.lost == 2


def test_a_failed_batch_is_sent_again_later_and_later() -> None:
    waiting = backlog(10, 2)
    pauses = []
    for _ in range(8):
        assert steps(waiting.batch()) == [0, 1]
        pauses.append(waiting.ended(Next.AGAIN_LATER))
    assert pauses == [1, 2, 4, 8, 16, 32, 60, 60]
    assert waiting.failures == 8
    waiting.batch()
    waiting.ended(Next.GO_ON)
    waiting.add(Point(2, 0.0, {}))
    waiting.batch()
    assert waiting.ended(Next.AGAIN_LATER) == 1, "it has worked meanwhile"


def test_where_the_key_is_not_taken_it_is_tried_again_at_least_once_an_hour() -> None:
    waiting = backlog(10, 2)
    pauses = []
    for _ in range(8):
        assert steps(waiting.batch()) == [0, 1]
        pauses.append(waiting.ended(Next.MUCH_LATER))
    assert pauses == [60, 120, 240, 480, 960, 1920, 3600, 3600]
    assert (waiting.failures, len(waiting)) == (8, 2)


def test_what_is_given_up_is_lost() -> None:
    waiting = backlog(10, 4)
    waiting.give_up()
    assert (len(waiting), waiting.lost) == (0, 4)


def send_all(waiting: Backlog, bad: set[int]) -> list[list[int]]:
    """The batches of a logger that refuses these steps."""
    seen = []
    while batch := waiting.batch():
        seen.append(steps(batch))
        refused = not bad.isdisjoint(seen[-1])
        assert waiting.ended(next_after(Answer.REFUSED if refused else Answer.TAKEN, len(batch))) == 0
    return seen


def test_of_a_refused_batch_each_point_is_sent_by_itself() -> None:
    waiting = backlog(1000, 103)
    assert send_all(waiting, {2}) == [list(range(100)), *([step] for step in range(100)), [100, 101, 102]]
    assert (waiting.sent, waiting.refused, waiting.lost, waiting.failures) == (102, 1, 0, 2)


def test_all_may_be_refused() -> None:
    waiting = backlog(10, 3)
    assert send_all(waiting, {0, 1, 2}) == [[0, 1, 2], [0], [1], [2]]
    assert (waiting.sent, waiting.refused, waiting.lost) == (0, 3, 0)


def test_a_logger_that_goes_away_amid_single_points_gets_the_rest_singly() -> None:
    waiting = backlog(10, 3)
    waiting.batch()
    waiting.ended(Next.SINGLY)
    waiting.batch()
    waiting.ended(Next.LEAVE_OUT)
    assert steps(waiting.batch()) == [1]
    assert waiting.ended(Next.AGAIN_LATER) == 1
    waiting.add(Point(3, 0.0, {}))
    assert send_all(waiting, set()) == [[1], [2], [3]]
    assert (waiting.sent, waiting.refused) == (3, 1)


def test_a_refusal_ends_a_row_of_failures() -> None:
    waiting = backlog(10, 2)
    pauses = []
    for following in (Next.AGAIN_LATER, Next.AGAIN_LATER, Next.SINGLY, Next.AGAIN_LATER):
        waiting.batch()
        pauses.append(waiting.ended(following))
    assert pauses == [1, 2, 0, 1]


_EVENTS = st.lists(
    st.sampled_from(["add", "begin", "give up"]) | st.sampled_from(list(Answer)), min_size=1, max_size=200
)


@given(most=st.integers(1, 8), events=_EVENTS)
def test_every_point_ends_once_as_sent_refused_or_lost(most: int, events: list[str | Answer]) -> None:
    """Against a list of what waits: points come, and batches are answered, in any order."""
    waiting, model = Backlog(most), deque[int]()
    ends: dict[int, str] = {}
    batch: list[int] = []
    added = 0

    def end(step: int, how: str) -> None:
        assert step not in ends, f"step {step} ended as {ends[step]}, and then as {how}"
        ends[step] = how
        model.remove(step)

    for event in events:
        if event == "add":
            waiting.add(Point(added, 0.0, {}))
            model.append(added)
            added += 1
            if len(model) > most:
                end(model[0], "lost")
        elif event == "begin":
            if not batch:
                batch = steps(waiting.batch())
                assert batch == list(model)[: len(batch)]
        elif event == "give up":
            waiting.give_up()
            for step in list(model):
                end(step, "lost")
        elif isinstance(event, Answer) and batch:
            following = next_after(event, len(batch))
            waiting.ended(following)
            if following in (Next.GO_ON, Next.LEAVE_OUT):
                for step in batch:
                    # Those that gave way to newer ones, or were given up, have ended.
                    if step in model:
                        end(step, "sent" if following is Next.GO_ON else "refused")
            batch = []
        how = list(ends.values())
        assert (waiting.sent, waiting.refused, waiting.lost) == tuple(
            how.count(each) for each in ("sent", "refused", "lost")
        )
        assert len(waiting) == len(model) and len(ends) + len(model) == added
