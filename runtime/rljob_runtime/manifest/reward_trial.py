"""A job's reward function, tried on the first rows of its data.

Guarantees: a function that scores any of the responses that are tried is right, if it returns the same parts
and metrics for each; nothing is fetched over the
network, other than by the function itself.
"""

import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from rljob_api import RLJob
from rljob_api.errors import Problem
from rljob_runtime.data.errors import DataError
from rljob_runtime.data.prompts import first_prompts
from rljob_runtime.data.tokenizer import TextTokenizer, build_tokenizer
from rljob_runtime.rewards import RewardInput
from rljob_runtime.rewards.calls import calls_of
from rljob_runtime.rewards.trial import try_reward
from rljob_runtime.samples import Prompt

_OWN_TASKS = "rljob_runtime.rewards.tasks:"
"""Rewards that raise for no response: they need no trial."""
_ROWS = 3
_SECONDS = 8.0
"""For the whole trial, with the start of a process and the import of the function's module."""


def try_job_reward(job: RLJob, folder: Path, host: Path | None) -> tuple[Problem, bool] | None:
    """What is wrong with the reward of a job whose data and tokenizer can be used, and whether that is
    certain; None where a response was scored, or none could be tried. Relative paths are relative to
    `folder`; `host` as in `RewardPool`."""
    training = job.spec.training
    reward, model = training.reward, training.model
    calls = calls_of(reward)
    if all(call.function.startswith(_OWN_TASKS) for call in calls):
        return None
    model_folder = folder / model.path if model.path is not None else None
    tokenizer = build_tokenizer(training.tokenizer, folder, model_folder)
    prompts = first_prompts(training.data, tokenizer, training.seed, folder, _ROWS)
    samples = [sample for prompt in prompts for sample in made_up(prompt, tokenizer)]
    found = try_reward(calls, [folder], samples, _SECONDS, host)
    if found is None:
        return None
    rows = "the first row" if len(prompts) == 1 else f"the first {len(prompts)} rows"
    if found.scored:
        # About the numbers beside the reward: tried on the same rows.
        message = f"{found.words} (tried on {rows} of the data)"
    elif found.certain:
        message = f"fails for whatever response to {rows} of the data: {found.words}"
    else:
        message = (
            f"failed for each response that was tried on {rows} of the data (the answer, the prompt's own "
            f"text, no text): {found.words}. Responses whose reward fails are not trained"
        )
    if (named := re.match(r"KeyError: '([^']+)'", found.words)) and not found.scored:
        fields = training.data.reward_fields
        if named[1] not in fields:
            has = ", ".join(fields) or "none"
            message += (
                f". A field of the data? RewardInput.fields has those of data.rewardFields (now: {has})"
            )
    return Problem(("spec", "training", "reward", reward.yaml_choice), message), found.certain


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
