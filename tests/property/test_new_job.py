"""Whatever is answered, the manifest is valid, or the answer is refused."""

from contextlib import suppress

from hypothesis import given, settings
from hypothesis import strategies as st

from rljob_api import RLJob
from rljob_runtime.authoring.answers import (
    QUESTIONS,
    Answers,
    Question,
    Unanswerable,
    answer,
    check,
    missing,
)
from rljob_runtime.authoring.fields import document
from rljob_runtime.authoring.new_job import COUNTED, new_job
from rljob_runtime.manifest.source import parse
from tests.support.depth import examples

FITTING = {
    "model": ["models/q"],
    "data": ["d.jsonl", "d.parquet", "org/set"],
    "reward": ["judge:score"],
    "accelerators": ["1", "2", "9", "64"],
    "claim": ["runs"],
}
ANY = st.text(max_size=20) | st.integers(-1, 5000).map(str)


@st.composite
def dialogues(draw: st.DrawFn) -> list[tuple[Question, str]]:
    """Questions and answers, most of which can be."""
    said: list[tuple[Question, str]] = []
    answers = Answers()
    for question in QUESTIONS:
        # Now and then one that the job has no need of.
        if not question.needed(answers) and draw(st.integers(0, 9)):
            continue
        fitting = st.sampled_from(question.choices or FITTING.get(question.field, ["x", "prompt"]))
        text = draw(fitting if draw(st.integers(0, 19)) else ANY)
        said.append((question, text))
        with suppress(Unanswerable):
            answers = answer(answers, question, text)
    return said


@settings(max_examples=examples(300))
@given(dialogues(), st.none() | st.integers(0, 2 * COUNTED))
def test_what_is_written_is_valid(said, prompts):
    answers = Answers()
    try:
        for question, text in said:
            answers = answer(answers, question, text)
        check(answers)
    except Unanswerable as error:
        assert "--" in str(error)
        return
    assert missing(answers) == []
    text, fields = new_job(answers, prompts=prompts)
    written = parse(text).value
    assert written == document(fields)
    RLJob.model_validate(written)
