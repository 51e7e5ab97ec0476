"""The tutorial's job (examples/own-job): its page prints the files that are there, and its reward is one."""

import re
from pathlib import Path

import pytest

from rljob_api import RLJob
from rljob_runtime.manifest.source import parse
from rljob_runtime.rewards.calls import calls_of
from rljob_runtime.rewards.load import load_reward
from rljob_runtime.rewards.outcome import Outcome, outcome_of
from tests.support.runtime.reward_inputs import reward_input

ROOT = Path(__file__).parents[4]
FOLDER = ROOT / "examples" / "own-job"
PAGE = (ROOT / "docs" / "own-job.md").read_text()


def printed(language: str) -> str:
    """The first text of a language on the page."""
    found = re.search(rf"^```{language}\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    assert found is not None
    return found[1]


def test_the_page_prints_the_manifest() -> None:
    document = parse((FOLDER / "job.yaml").read_text()).value
    assert parse(printed("yaml")).value == document
    RLJob.model_validate(document)


def test_the_page_prints_the_reward() -> None:
    text = (FOLDER / "my_rewards.py").read_text()
    without = re.sub(r'^ *""".*?"""\n+', "", text, flags=re.MULTILINE | re.DOTALL)
    assert printed("python") == without


@pytest.mark.parametrize(
    ("response", "expected"),
    [
        ("blue", Outcome(1.0, {"correct": 1.0, "brief": 0.0}, {"words": 1.0, "right_word_first": 1.0})),
        (
            " Grey sky",
            Outcome(0.48, {"correct": 0.5, "brief": -0.02}, {"words": 2.0, "right_word_first": 0.0}),
        ),
        ("", Outcome(0.0, {"correct": 0.0, "brief": 0.0}, {"words": 0.0, "right_word_first": None})),
    ],
)
def test_its_reward(response: str, expected: Outcome, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(FOLDER))
    job = RLJob.model_validate(parse((FOLDER / "job.yaml").read_text()).value)
    (call,) = calls_of(job.spec.training.reward)
    sample = reward_input(response=response, answer="blue", fields={"also": ["grey"]})
    found = outcome_of(load_reward(call.function, call.arguments)(sample))
    assert found == expected
