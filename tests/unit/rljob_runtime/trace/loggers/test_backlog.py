"""What waits for a logger: order, bound, and when it is tried again."""

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
        waiting.sent()
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
    waiting.sent()
    assert steps(waiting.batch()) == [2]


def test_points_left_out_while_they_are_sent_are_not_taken_from_others() -> None:
    waiting = backlog(3, 3)
    waiting.batch()
    for step in (3, 4):
        waiting.add(Point(step, 0.0, {}))
    waiting.sent()
    assert steps(waiting.batch()) == [3, 4]
    assert waiting.lost == 2


def test_a_failed_batch_is_sent_again_later_and_later() -> None:
    waiting = backlog(10, 2)
    pauses = []
    for _ in range(8):
        assert steps(waiting.batch()) == [0, 1]
        pauses.append(waiting.failed())
    assert pauses == [1, 2, 4, 8, 16, 32, 60, 60]
    assert waiting.failures == 8
    waiting.batch()
    waiting.sent()
    waiting.add(Point(2, 0.0, {}))
    waiting.batch()
    assert waiting.failed() == 1, "it has worked meanwhile"


def test_what_is_given_up_is_lost() -> None:
    waiting = backlog(10, 4)
    waiting.give_up()
    assert (len(waiting), waiting.lost) == (0, 4)
