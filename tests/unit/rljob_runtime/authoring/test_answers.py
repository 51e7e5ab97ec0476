"""What is asked of a new job, and which answers cannot be."""

import pytest

from rljob_runtime.authoring.answers import (
    QUESTIONS,
    Answers,
    Unanswerable,
    answer,
    check,
    missing,
    needed_flags,
    with_defaults,
)
from rljob_runtime.authoring.ask import ask


def question(field: str):
    return next(each for each in QUESTIONS if each.field == field)


@pytest.mark.parametrize(
    ("answers", "fields"),
    [
        (Answers(task="copy"), ["accelerator", "accelerators", "where"]),
        (Answers(task="math"), ["model", "data", "accelerator", "accelerators", "where"]),
        (Answers(task="own"), ["model", "data", "reward", "accelerator", "accelerators", "where"]),
        (Answers(task="copy", accelerator="cpu", accelerators=2, where="machine"), []),
        (Answers(task="copy", accelerator="cpu", accelerators=2, where="cluster"), ["claim"]),
    ],
)
def test_only_what_a_job_needs_is_missing(answers, fields):
    assert [each.field for each in missing(answers)] == fields


@pytest.mark.parametrize(
    ("answers", "words"),
    [
        (
            Answers(),
            "--task TASK (math, own, copy, repeat, count, reverse), --model MODEL (for --task math and own), "
            "--data DATA (for --task math and own), --reward REWARD (for --task own)",
        ),
        (Answers(task="own", model="m"), "--data DATA, --reward REWARD"),
        (Answers(task="copy", where="cluster"), "--claim CLAIM"),
        (Answers(task="copy"), ""),
    ],
)
def test_flags_that_are_needed(answers, words):
    assert needed_flags(answers) == words


@pytest.mark.parametrize(
    ("answers", "words"),
    [
        (Answers(task="copy", model="m"), "leave --model out: it is for --task math and own"),
        (Answers(task="copy", prompt_field="m"), "leave --prompt-field out: it is for --task math and own"),
        (Answers(task="math", reward="a:b"), "leave --reward out: it is for --task own"),
        (Answers(task="math", reward_fields="also"), "leave --reward-fields out: it is for --task own"),
        (
            Answers(task="own", reward_fields="also, "),
            "--reward-fields must be names of fields with commas between them (found also, )",
        ),
        (Answers(task="math", claim="a"), "leave --claim out: it is for --where cluster"),
        (Answers(task="own", reward="judge"), "--reward must be module:function, such as my_rewards:score"),
        (Answers(name="Big"), "--name must be a name of a-z, 0-9 and -"),
        (Answers(where="cluster", claim="a b"), "--claim must be the name of a PersistentVolumeClaim"),
        (Answers(data="a.csv"), "--data must be a .jsonl or .parquet file"),
        (Answers(data="a.JSON"), "--data must be a .jsonl or .parquet file"),
        (Answers(where="cluster", accelerators=1), "--accelerators must be 2 or more in a cluster"),
    ],
)
def test_what_cannot_be(answers, words):
    with pytest.raises(Unanswerable) as caught:
        check(answers)
    assert str(caught.value).startswith(words)


@pytest.mark.parametrize(
    ("field", "text", "words"),
    [
        ("task", "chess", "--task must be one of math, own, copy, repeat, count, reverse (found chess)"),
        ("task", "", "--task must be one of math, own, copy, repeat, count, reverse (found nothing)"),
        ("model", " ", "--model must not be empty"),
        ("accelerators", "0", "--accelerators must be a number from 1 to 4096 (found 0)"),
        ("accelerators", "many", "--accelerators must be a number from 1 to 4096 (found many)"),
        ("accelerators", "9" * 400, "--accelerators must be a number from 1 to 4096 (found 999"),
    ],
)
def test_answers_that_are_none(field, text, words):
    with pytest.raises(Unanswerable) as caught:
        answer(Answers(), question(field), text)
    assert str(caught.value).startswith(words)


def test_defaults():
    assert with_defaults(Answers(task="copy", accelerator="cpu")) == Answers(
        task="copy", accelerator="cpu", accelerators=2, where="machine"
    )


def dialogue(answers: Answers, *lines: str) -> tuple[Answers | None, list[str]]:
    said: list[str] = []
    left = list(lines)
    return ask(answers, lambda: left.pop(0) if left else "", said.append), said


def test_a_dialogue():
    answers, said = dialogue(
        Answers(), "math\n", "models/q\n", "d.jsonl\n", "\n", "8\n", "cluster\n", "runs\n"
    )
    assert answers == Answers(
        task="math",
        model="models/q",
        data="d.jsonl",
        accelerator="nvidia",
        accelerators=8,
        where="cluster",
        claim="runs",
    )
    assert len(said) == 7
    assert said[3] == "What it runs on [nvidia, ascend, cpu; Enter: nvidia]: "


def test_an_answer_that_cannot_be_is_asked_for_again():
    answers, said = dialogue(Answers(task="copy", where="machine"), "gpu\n", "cpu\n", "none\n", "3\n")
    assert answers == Answers(task="copy", accelerator="cpu", accelerators=3, where="machine")
    assert said[1] == "--accelerator must be one of nvidia, ascend, cpu (found gpu)\n"


def test_a_dialogue_that_ends_early():
    assert dialogue(Answers(), "copy\n")[0] is None


def test_nothing_is_asked_where_all_is_said():
    answers = Answers(task="copy", accelerator="cpu", accelerators=2, where="machine")
    assert dialogue(answers) == (answers, [])
