"""What a logger's answer means, and what comes next."""

import pytest

from rljob_runtime.trace.loggers.answers import Answer, Next, answer_of, next_after, what_to_do


@pytest.mark.parametrize(
    ("statuses", "expected"),
    [
        ((200, 201, 202, 204, 299), Answer.TAKEN),
        ((400, 402, 406, 409, 411, 413, 415, 418, 422, 431, 499), Answer.REFUSED),
        ((401, 403, 404, 405, 407, 410), Answer.DENIED),
        ((408, 425, 429), Answer.AWAY),
        ((100, 199, 300, 302, 307, 399, 500, 502, 503, 504, 599), Answer.AWAY),
    ],
)
def test_statuses(statuses: tuple[int, ...], expected: Answer) -> None:
    assert [answer_of(status) for status in statuses] == [expected] * len(statuses)


@pytest.mark.parametrize(
    ("answer", "points", "expected"),
    [
        (Answer.TAKEN, 1, Next.GO_ON),
        (Answer.TAKEN, 100, Next.GO_ON),
        (Answer.AWAY, 1, Next.AGAIN_LATER),
        (Answer.AWAY, 100, Next.AGAIN_LATER),
        (Answer.DENIED, 1, Next.MUCH_LATER),
        (Answer.DENIED, 100, Next.MUCH_LATER),
        (Answer.REFUSED, 1, Next.LEAVE_OUT),
        (Answer.REFUSED, 2, Next.SINGLY),
        (Answer.REFUSED, 100, Next.SINGLY),
    ],
)
def test_what_comes_next(answer: Answer, points: int, expected: Next) -> None:
    assert next_after(answer, points) is expected


@pytest.mark.parametrize(
    ("statuses", "told"),
    [
        ((401, 403), "does not take the job's key: set KEY in the driver's environment"),
        ((404, 405, 410), "nothing there takes metrics: correct loggers.url, and resume the job"),
        ((407,), "a proxy on the way"),
    ],
)
def test_what_a_person_does_about_a_denial(statuses: tuple[int, ...], told: str) -> None:
    for status in statuses:
        assert told in what_to_do(status, "KEY", "loggers.url")
