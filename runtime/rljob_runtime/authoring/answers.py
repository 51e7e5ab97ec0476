"""What `rljob new` must know of a job, which of it is missing, and which of it cannot be.

Guarantees: nothing is asked that the job does not need; an answer without effect is refused, not ignored.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from rljob_runtime.authoring.data_files import is_other
from rljob_runtime.authoring.fields import refusal

EXAMPLE_TASKS = ("copy", "repeat", "count", "reverse")
TASKS = ("math", "own", *EXAMPLE_TASKS)
ACCELERATORS = ("nvidia", "ascend", "cpu")
PLACES = ("machine", "cluster")
_MOST = 4096
_LABEL = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?")


@dataclass(frozen=True)
class Answers:
    """What a user says of a job; None where nothing is said."""

    task: str | None = None
    """One of `TASKS`."""
    model: str | None = None
    """Folder of the model; none for the example tasks, whose model is a random one."""
    data: str | None = None
    """File of the prompts, or the name of a Hugging Face data set; none for the example tasks."""
    reward: str | None = None
    """`module:function`; for task own alone."""
    prompt_field: str | None = None
    """Field of the data that holds the prompt; default: prompt."""
    answer_field: str | None = None
    """Field of the data that holds the reference answer; default: answer."""
    reward_fields: str | None = None
    """Further fields of the data that the reward gets, with commas between them; for task own alone."""
    accelerator: str | None = None
    """One of `ACCELERATORS`."""
    accelerators: int | None = None
    """Accelerators of the whole job; with cpu its workers."""
    where: str | None = None
    """One of `PLACES`."""
    claim: str | None = None
    """The PersistentVolumeClaim with model and data; in a cluster alone."""
    name: str | None = None
    """The job's name."""

    @property
    def reward_field_names(self) -> list[str]:
        """`reward_fields`, one by one."""
        return [] if self.reward_fields is None else [each.strip() for each in self.reward_fields.split(",")]

    @property
    def is_example(self) -> bool:
        """Whether the task is one that needs neither model nor data."""
        return self.task in EXAMPLE_TASKS


@dataclass(frozen=True)
class Question:
    """One thing to know."""

    field: str
    """The attribute of `Answers`."""
    text: str
    """The question."""
    needed: Callable[[Answers], bool]
    """Whether a job with these answers needs one to this; else one that is given is refused."""
    whose: str = ""
    """Which jobs need it; empty: all."""
    choices: tuple[str, ...] = ()
    default: str | None = None
    """What an empty answer means; None: there must be one."""
    required: bool = True
    """Whether a job cannot be written without it. Only what is required is asked."""

    @property
    def flag(self) -> str:
        """How it is given on the command line."""
        return f"--{self.field.replace('_', '-')}"


_MODELLED = "for --task math and own"

QUESTIONS = (
    Question(
        "task",
        "What is trained? math: answers that can be compared; own: a reward function of yours; "
        "the others: examples with a tiny model",
        lambda _: True,
        choices=TASKS,
    ),
    Question(
        "model",
        "The model's folder, in Hugging Face format",
        lambda answers: not answers.is_example,
        _MODELLED,
    ),
    Question(
        "data",
        "The prompts: a .jsonl or .parquet file, or the name of a Hugging Face data set",
        lambda answers: not answers.is_example,
        _MODELLED,
    ),
    Question(
        "prompt_field",
        "Field of the data that holds the prompt (default: prompt)",
        lambda answers: not answers.is_example,
        _MODELLED,
        required=False,
    ),
    Question(
        "answer_field",
        "Field of the data that holds the reference answer (default: answer)",
        lambda answers: not answers.is_example,
        _MODELLED,
        required=False,
    ),
    Question(
        "reward",
        "The reward function, as module:function (the module lies beside the manifest)",
        lambda answers: answers.task == "own",
        "for --task own",
    ),
    Question(
        "reward_fields",
        "Further fields of the data that the reward gets, with commas between them",
        lambda answers: answers.task == "own",
        "for --task own",
        required=False,
    ),
    Question("accelerator", "What it runs on", lambda _: True, choices=ACCELERATORS, default="nvidia"),
    Question(
        "accelerators",
        "How many accelerators, trainer and engines together (cpu: workers)",
        lambda _: True,
        default="2",
    ),
    Question("where", "One machine, or a cluster", lambda _: True, choices=PLACES, default="machine"),
    Question(
        "claim",
        "The PersistentVolumeClaim that holds model and data, and takes what the job writes",
        lambda answers: answers.where == "cluster",
        "for --where cluster",
    ),
    Question("name", "The job's name", lambda _: True, required=False),
)


class Unanswerable(ValueError):
    """An answer cannot be; the message names the flag and what is allowed."""


def missing(answers: Answers) -> list[Question]:
    """The required questions without an answer, but those that the job has no need of."""
    return [
        question
        for question in QUESTIONS
        if question.required and getattr(answers, question.field) is None and question.needed(answers)
    ]


def unnamed_fields(answers: Answers, there: Sequence[str]) -> list[Question]:
    """The questions for fields of the data that a job needs, that no answer names, and that the data does not
    have under the name that is taken by default. `there`: the fields that it has; none where they are not
    known, and then nothing is asked."""
    wanted = {"prompt_field": "prompt"}
    if answers.task == "math":
        wanted["answer_field"] = "answer"
    return [
        replace(question, text=question.text.partition(" (default")[0], choices=tuple(there))
        for question in QUESTIONS
        if there
        and question.field in wanted
        and getattr(answers, question.field) is None
        and wanted[question.field] not in there
    ]


def needed_flags(answers: Answers) -> str:
    """What must still be given on a command line, in words; empty where nothing must."""
    parts = []
    for question in missing(answers):
        # A job whose task is not known may have need of what others have not.
        if question.default is None:
            told = [", ".join(question.choices), "" if answers.task is not None else question.whose]
            words = "; ".join(filter(None, told))
            parts.append(f"{question.flag} {question.field.upper()}" + (f" ({words})" if words else ""))
    if answers.task is None:
        parts.append("--reward REWARD (for --task own)")
    return ", ".join(dict.fromkeys(parts))


def with_defaults(answers: Answers) -> Answers:
    """The answers, with the default of every question that has one and is not answered."""
    for question in QUESTIONS:
        if question.default is not None and getattr(answers, question.field) is None:
            answers = answer(answers, question, question.default)
    return answers


def answer(answers: Answers, question: Question, text: str) -> Answers:
    """The answers with one more; raises `Unanswerable`."""
    text = text.strip()
    flag = question.flag
    if question.choices and text not in question.choices:
        raise Unanswerable(f"{flag} must be one of {', '.join(question.choices)} (found {text or 'nothing'})")
    if question.field != "accelerators":
        if not text:
            raise Unanswerable(f"{flag} must not be empty")
        said: dict[str, Any] = {question.field: text}
        given = replace(answers, **said)
    elif text.isascii() and text.isdecimal() and 1 <= int(text[:9]) <= _MOST:
        given = replace(answers, accelerators=int(text[:9]))
    else:
        raise Unanswerable(f"{flag} must be a number from 1 to {_MOST} (found {text or 'nothing'})")
    check(given, only=question.field)
    return given


def check(answers: Answers, only: str | None = None) -> None:
    """Raise `Unanswerable` where an answer, or the one to `only`, does not fit the others or the API."""
    for question in QUESTIONS:
        value = getattr(answers, question.field)
        if value is None or only not in (None, question.field):
            continue
        if not question.needed(answers):
            raise Unanswerable(f"leave {question.flag} out: it is {question.whose}")
        why = _refused(question.field, value, answers)
        if why is not None:
            raise Unanswerable(f"{question.flag} {why}")


def _refused(field: str, value: object, answers: Answers) -> str | None:
    """Why a value cannot be, after the name of its flag."""
    if field == "reward":
        return refusal("spec.training.reward.function", value)
    if field == "reward_fields":
        if not all(answers.reward_field_names):
            return f"must be names of fields with commas between them (found {value})"
        return refusal("spec.training.data.rewardFields", answers.reward_field_names)
    if field == "name":
        return refusal("metadata.name", value)
    if field == "claim" and not _LABEL.fullmatch(str(value)):
        return f"must be the name of a PersistentVolumeClaim, of a-z, 0-9, - and . (found {value})"
    if field == "data" and is_other(str(value)):
        return f"must be a .jsonl or .parquet file, or the name of a Hugging Face data set (found {value})"
    if field == "accelerators" and value == 1 and answers.where == "cluster":
        return "must be 2 or more in a cluster: trainer and engine are pods of their own"
    if field == "where" and value == "cluster" and answers.accelerators == 1:
        return "cluster needs --accelerators 2 or more: trainer and engine are pods of their own"
    return None
