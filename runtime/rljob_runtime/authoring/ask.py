"""Questions to a person, one after the other.

Guarantees: a question is asked until its answer can be, or there is no more input; what is answered already
is not asked.
"""

from collections.abc import Callable, Sequence

from rljob_runtime.authoring.answers import Answers, Question, Unanswerable, answer, missing


def ask(
    answers: Answers,
    read: Callable[[], str],
    say: Callable[[str], None],
    still: Callable[[Answers], Sequence[Question]] = missing,
) -> Answers | None:
    """All answers that a job needs; None where the input ends before. `read` gives a line with its end, or
    nothing at the end of the input; `say` shows a text as it is; `still` are the questions that answers leave
    open."""
    while open_questions := still(answers):
        question = open_questions[0]
        say(_shown(question))
        line = read()
        if not line:
            return None
        try:
            answers = answer(answers, question, line.strip() or question.default or "")
        except Unanswerable as error:
            say(f"{error}\n")
    return answers


def _shown(question: Question) -> str:
    hints = [", ".join(question.choices), f"Enter: {question.default}" if question.default else ""]
    words = "; ".join(filter(None, hints))
    return f"{question.text}{f' [{words}]' if words else ''}: "
