"""A job's reward function, tried on the first rows of its data and of the sets of training.evaluation.

Guarantees: a function that scores any of the responses that are tried is right, if it returns the same parts
and metrics for each; nothing is fetched over the
network, other than by the function itself.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path as File

import numpy as np

from rljob_api import RLJob
from rljob_api.data import PromptData
from rljob_api.errors import Path, Problem
from rljob_api.training import Training
from rljob_runtime.data.errors import DataError
from rljob_runtime.data.prompts import first_prompts
from rljob_runtime.data.tokenizer import TextTokenizer
from rljob_runtime.manifest.evaluation_check import SETS
from rljob_runtime.manifest.pass_reward import not_passing
from rljob_runtime.manifest.text_checks import Texts
from rljob_runtime.rewards import RewardInput
from rljob_runtime.rewards.calls import calls_of
from rljob_runtime.rewards.pace import near_limit, slow_step, usual_seconds
from rljob_runtime.rewards.trial import Trial, Verdict, try_reward
from rljob_runtime.samples import Prompt

_REWARD = ("spec", "training", "reward")
_OWN_TASKS = "rljob_runtime.rewards.tasks:"
"""Rewards that raise for no response: they need no trial."""
_ROWS = 3
_SECONDS = 8.0
"""For the whole trial, with the start of a process and the import of the function's module."""


@dataclass(frozen=True)
class _Place:
    """Prompts that the reward is tried on."""

    path: Path
    """Of the field that an error points at."""
    data: PromptData
    what: str
    """What they are called after "of"."""
    prompts: list[Prompt]

    @property
    def held_out(self) -> bool:
        """Whether they are of an evaluation."""
        return self.path[: len(SETS)] == SETS

    @property
    def answerless(self) -> bool:
        """Whether none of them has an answer."""
        return all(prompt.answer is None for prompt in self.prompts)

    @property
    def rows(self) -> str:
        """`the first 3 rows of the data`."""
        count = len(self.prompts)
        return f"the first row of {self.what}" if count == 1 else f"the first {count} rows of {self.what}"


def try_job_reward(
    job: RLJob, folder: File, host: File | None, texts: Texts, quoting: bool
) -> list[tuple[Problem, bool]]:
    """What is wrong with the reward of a job, each with whether that is certain; nothing where a response was
    scored to the prompts of the data and of each set of training.evaluation, or none could be tried. It is
    tried on what `texts` says is right. Relative paths are relative to `folder`; `host` as in `RewardPool`.
    `quoting`: what an exception says, which may quote the data, is told too."""
    training = job.spec.training
    calls = calls_of(training.reward)
    tokenizer = texts.tokenizer
    if tokenizer is None or all(call.function.startswith(_OWN_TASKS) for call in calls):
        return []
    places = list(_places(training, tokenizer, folder, texts))
    batches = [[each for prompt in place.prompts for each in made_up(prompt, tokenizer)] for place in places]
    trial = try_reward(calls, [folder], batches, _SECONDS, host)
    found = trial.found
    # What is wrong for whatever is tried first, most often what is trained, is told once.
    if 0 in found and not found[0].scored:
        found = {0: found[0]}
    found = {index: each for index, each in found.items() if index == 0 or each != found.get(0)}
    return [
        *(
            (Problem(places[index].path, _message(training, places[index], each, quoting)), each.certain)
            for index, each in found.items()
        ),
        *((each, False) for each in _pace(training, trial.seconds)),
        *((each, False) for each in _passing(training, places, batches, trial)),
        *((each, False) for each in _answerless(training, places, batches, trial)),
    ]


def _answerless(
    training: Training, places: list[_Place], batches: list[list[RewardInput]], trial: Trial
) -> Iterator[Problem]:
    """What is to be told of data without answers, whose field a manifest easily forgets: a reward that
    compares with one then gives the same to each response."""
    for place, samples, scores in zip(places, batches, trial.scores, strict=False):
        different = len({sample.response for sample in samples[: len(scores)]}) > 1
        alike = len({score.value for score in scores if score.failure is None}) == 1
        if place.held_out or not place.answerless or not (different and alike):
            continue
        if all(score.failure is None for score in scores):
            yield Problem(
                ("spec", "training", "data", "answerField"),
                f'{place.rows} have no field "{training.data.answer_field}": RewardInput.answer is None, '
                f"and the reward is {scores[0].value:g} for each response that was tried. Where it compares "
                "with an answer, name the field that has it",
            )


def _passing(
    training: Training, places: list[_Place], batches: list[list[RewardInput]], trial: Trial
) -> Iterator[Problem]:
    """What is to be told of what an evaluation would count as passed."""
    answers, others = list[float](), list[float]()
    # Where time was over there are fewer scores than samples, and fewer batches.
    for place, samples, scores in zip(places, batches, trial.scores, strict=False):
        for sample, score in zip(samples, scores, strict=False):
            if place.held_out and score.failure is None:
                (answers if sample.response == sample.answer else others).append(score.value)
    if training.evaluation is None:
        return
    if (why := not_passing(answers, others, training.evaluation.pass_reward)) is not None:
        yield Problem((*SETS[:-1], "passReward"), why)


def _pace(training: Training, measured: Sequence[float]) -> Iterator[Problem]:
    """What is to be told of how long responses took."""
    seconds, reward = usual_seconds(measured), training.reward
    if seconds is None:
        return
    samples = training.groups_per_step * training.rollout.samples_per_prompt
    if (slow := slow_step(seconds, samples, reward.workers)) is not None:
        yield Problem((*_REWARD, "workers"), slow)
    if (near := near_limit(seconds, reward.timeout_seconds)) is not None:
        yield Problem((*_REWARD, "timeoutSeconds"), near)


def _places(training: Training, tokenizer: TextTokenizer, folder: File, texts: Texts) -> Iterator[_Place]:
    """The data, and each set of training.evaluation, where nothing is wrong with it."""

    def first(data: PromptData, seed: int) -> list[Prompt]:
        return first_prompts(data, tokenizer, seed, folder, _ROWS)

    reward = (*_REWARD, training.reward.yaml_choice)
    if texts.data_right:
        yield _Place(reward, training.data, "the data", first(training.data, training.seed))
    sets = training.evaluation.sets if training.evaluation is not None else []
    for index, (each, data) in enumerate(zip(sets, training.held_out, strict=True)):
        if index not in texts.right_sets:
            continue
        path = (*SETS, index, "data")
        yield _Place(path, data, f"the evaluation set {each.name}", first(data, training.seed + 1 + index))


def _message(training: Training, place: _Place, found: Verdict, quoting: bool) -> str:
    words = found.words if quoting or not found.unquoted else found.unquoted
    held_out = place.held_out
    subject = "the reward " if held_out else ""
    if found.late:
        return (
            f"{subject}did not end within the {_SECONDS:g} s in which it is tried on {place.rows}: nothing "
            "is known of it. Where later calls are as slow, reward.timeoutSeconds "
            f"({training.reward.timeout_seconds:g}) leaves their responses without a reward"
        )
    if found.scored:
        # About the numbers beside the reward: tried on the same rows.
        return f"{subject}{found.words} (tried on {place.rows})"
    if found.certain:
        message = f"{subject}fails for whatever response to {place.rows}: {words}"
    else:
        lost = "count as not passed" if held_out else "are not trained"
        message = (
            f"{subject}failed for each response that was tried on {place.rows} (the answer, the prompt's own "
            f"text, no text): {words}. Responses whose reward fails {lost}"
        )
    if "NoneType" in found.words and place.answerless:
        field = "answerField of the set" if held_out else "data.answerField"
        message += (
            f'. RewardInput.answer is None, since these rows have no "{place.data.answer_field}" ({field})'
        )
    named = re.match(r"KeyError: '([^']+)'", found.words)
    if named and named[1] not in place.data.reward_fields:
        has = ", ".join(place.data.reward_fields) or "none"
        its = "rewardFields of the set" if held_out else "data.rewardFields"
        message += f". A field of the data? RewardInput.fields has those of {its} (now: {has})"
    return message


def made_up(prompt: Prompt, tokenizer: TextTokenizer) -> Iterator[RewardInput]:
    """Responses to a prompt, each ended by the stop token: its answer where it has one, its own text, no
    text."""
    texts = [prompt.text, ""] if prompt.answer is None else [prompt.answer, prompt.text, ""]
    for text in dict.fromkeys(texts):
        try:
            # As `rendered`: a response has none of the special tokens that are put around a prompt.
            tokens = tokenizer.encode(text, rendered=True)
        except DataError:  # an answer may have characters that the tokenizer lacks
            continue
        ended = np.append(tokens, np.int32(tokenizer.eos_id)).astype(np.int32)
        yield RewardInput(
            prompt.text, text, prompt.answer, prompt.tokens, ended, finished=True, fields=prompt.fields,
            source=prompt.source,
        )  # fmt: skip
