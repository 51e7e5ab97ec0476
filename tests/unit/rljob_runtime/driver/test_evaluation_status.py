"""What a status tells of an evaluation."""

from rljob_runtime.driver.evaluation_status import evaluation_status
from rljob_runtime.evaluation.scores import GradedResponse, score_set
from rljob_runtime.trace.record.evaluation_log import EvaluationLine, in_words, scalars

ONE = score_set([[GradedResponse(0.625, 4)], [GradedResponse(1.0, 8)]], 1.0)
FOUR = score_set([[GradedResponse(float(index == 0), 5) for index in range(4)]], 1.0)
NONE = score_set([[GradedResponse(None, 1)]], 1.0)
LINE = EvaluationLine(
    step=20, version=10, time=5.0, seconds=2.0, sets={"easy": ONE, "hard": FOUR, "odd": NONE}
)


def test_status() -> None:
    found = evaluation_status(LINE).model_dump(mode="json", by_alias=True, exclude_none=True)
    assert found == {
        "step": 20,
        "version": 10,
        "sets": [
            {"name": "easy", "mean": 0.8125, "passAt1": 0.5},
            {"name": "hard", "mean": 0.25, "passAt1": 0.25, "passAtK": 1.0},
            {"name": "odd", "passAt1": 0.0},
        ],
        "summary": "0.812/0.25/-",
    }


def test_words() -> None:
    assert in_words(LINE) == (
        "evaluation after step 20: easy mean 0.812, pass@1 0.5; hard mean 0.25, pass@1 0.25, pass@4 1; "
        "odd no rewards, pass@1 0"
    )


def test_curves() -> None:
    assert scalars(LINE) == {
        "evaluation/easy/mean": 0.8125,
        "evaluation/easy/pass@1": 0.5,
        "evaluation/easy/response_length": 6.0,
        "evaluation/hard/mean": 0.25,
        "evaluation/hard/pass@1": 0.25,
        "evaluation/hard/pass@2": 0.5,
        "evaluation/hard/pass@4": 1.0,
        "evaluation/hard/response_length": 5.0,
        "evaluation/odd/pass@1": 0.0,
        "evaluation/odd/response_length": 1.0,
    }
