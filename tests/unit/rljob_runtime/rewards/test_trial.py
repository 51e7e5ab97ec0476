"""What is said of a reward that was tried before a job starts."""

import pytest

from rljob_runtime.rewards import Score
from rljob_runtime.rewards.part_names import NOT_RETURNED
from rljob_runtime.rewards.trial import Trial, Verdict, verdict, when_over

VALUE = "error: ValueError: no answer in it (judge.py:3, in score)"
DIED = "reward worker died (exit code 1)"
NAME = "error: NameError: name 'match' is not defined (judge.py:3, in score)"


@pytest.mark.parametrize(
    ("failures", "expected"),
    [
        ([], None),
        ([None, None], None),
        ([VALUE, None], None),
        ([NAME, None], None),
        ([VALUE, VALUE], Verdict("ValueError: no answer in it (judge.py:3, in score)", certain=False)),
        (
            [NAME, NAME],
            Verdict("NameError: name 'match' is not defined (judge.py:3, in score)", certain=True),
        ),
        (
            [NAME, VALUE],
            Verdict("NameError: name 'match' is not defined (judge.py:3, in score)", certain=False),
        ),
        (["error: ImportError: no sympy"] * 2, Verdict("ImportError: no sympy", certain=True)),
        (
            ["error: AttributeError: 'RewardInput' object has no attribute 'text'"],
            Verdict("AttributeError: 'RewardInput' object has no attribute 'text'", certain=True),
        ),
        (
            ["error: AttributeError: 'NoneType' object has no attribute 'group'"],
            Verdict("AttributeError: 'NoneType' object has no attribute 'group'", certain=False),
        ),
        (
            ["error: TypeError: 'NoneType' object is not iterable"],
            Verdict("TypeError: 'NoneType' object is not iterable", certain=False),
        ),
        (
            ["reward worker died (signal SIGSEGV)"],
            Verdict("reward worker died (signal SIGSEGV)", certain=False),
        ),
        (["timeout after 5 s", VALUE], Verdict("", certain=False, late=True)),
        (["timeout after 5 s"] * 2, Verdict("", certain=False, late=True)),
        (["cancelled"], Verdict("", certain=False, late=True)),
        ([DIED, "timeout after 5 s"], Verdict(DIED, certain=False)),
        ([DIED, None], None),
    ],
)
def test_what_the_scores_say(failures: list[str | None], expected: Verdict | None) -> None:
    assert verdict([Score(0.0, failure) for failure in failures]) == expected


@pytest.mark.parametrize(
    ("failure", "outline", "unquoted"),
    [
        (VALUE, "error: ValueError (judge.py:3, in score)", "ValueError (judge.py:3, in score)"),
        (NAME, "error: NameError (judge.py:3, in score)", ""),
        (DIED, None, ""),
    ],
    ids=["an exception of the function", "Python's words about its text", "no exception"],
)
def test_what_they_say_without_text(failure: str, outline: str | None, unquoted: str) -> None:
    found = verdict([Score(0.0, failure, failure_outline=outline)] * 2)
    assert found is not None and found.unquoted == unquoted


LATE = Verdict("", certain=False, late=True)
SCORED = Score(1.0, seconds=0.5)


@pytest.mark.parametrize(
    ("batches", "spent", "expected"),
    [
        # It takes long to start, or at its first response.
        ([], 8.0, LATE),
        ([[]], 8.0, LATE),
        ([[SCORED, SCORED]], 1.0, None),
        ([[SCORED, SCORED]], 6.0, LATE),
        ([[SCORED, SCORED, SCORED], []], 1.0, None),
        # What took the time was starting other workers.
        ([[Score(0.0, DIED)]], 1.0, Verdict(DIED, certain=False)),
        ([[Score(0.0, VALUE), Score(0.0, DIED)]], 1.0, Verdict(VALUE.removeprefix("error: "), certain=False)),
        ([[SCORED, Score(0.0, DIED)]], 1.0, None),
        ([[SCORED, Score(0.0, DIED)], []], 1.0, None),
    ],
)
def test_what_is_told_when_time_is_over(
    batches: list[list[Score]], spent: float, expected: Verdict | None
) -> None:
    assert when_over(Trial(scores=batches), spent) == expected


def scores(*parts: dict[str, float] | Score) -> list[Score]:
    return [each if isinstance(each, Score) else Score(0.0, parts=each) for each in parts]


@pytest.mark.parametrize(
    ("scored", "words", "certain"),
    [
        (scores({}, {}), None, None),
        (scores({"a": 1.0}, {"a": 0.0}), None, None),
        (scores({"a": 1.0}, Score(0.0, VALUE)), None, None),
        (
            scores({"a": 1.0, "b": 1.0}, {"a": 0.0}),
            "returns other parts or metrics from call to call, as a, b for one response and a for another: "
            "return the same names each time, None for a metric that does not apply",
            True,
        ),
        (
            scores({}, {}, {"a": 0.0}),
            "returns other parts or metrics from call to call, as none for one response and a for another: "
            "return the same names each time, None for a metric that does not apply",
            True,
        ),
        # The pool has seen the first before it complains of the second: the names differ all the same.
        (
            scores({"a": 1.0}, Score(0.0, complaints={"parts.a": NOT_RETURNED})),
            "returns other parts or metrics from call to call, as a for one response and none for another: "
            "return the same names each time, None for a metric that does not apply",
            True,
        ),
        (
            scores({"a": 1.0}, Score(0.0, complaints={"parts.a": "returned nan, not a finite number"})),
            "has no usable parts.a: returned nan, not a finite number",
            False,
        ),
    ],
)
def test_what_parts_and_metrics_say(scored: list[Score], words: str | None, certain: bool | None) -> None:
    found = verdict(scored)
    assert (found and (found.words, found.certain, found.scored)) == (words and (words, certain, True))


@pytest.mark.parametrize(
    "raised",
    [
        "TypeError: 'RewardInput' object is not iterable (judge.py:3, in score)",
        "TypeError: 'RewardInput' object is not subscriptable (judge.py:3, in score)",
        "TypeError: object of type 'RewardInput' has no len() (judge.py:3, in score)",
    ],
)
def test_a_sample_that_is_taken_for_a_list_or_a_text_is_certain(raised: str) -> None:
    found = verdict([Score(0.0, f"error: {raised}")] * 2)
    expected = f"{raised}: a reward takes one RewardInput, and returns one reward (docs/rewards.md)"
    assert found == Verdict(expected, certain=True)


def test_what_cannot_be_read_is_certain() -> None:
    form = "error: RewardFormError: returned the key 'rewrad'; the keys are reward, parts, metrics"
    found = verdict([Score(0.0, form)] * 2)
    assert found is not None
    assert found.certain
