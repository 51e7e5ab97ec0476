"""Validation of a verl launch becomes evaluations."""

import pytest

from tests.support.runtime.verl_launch import ROLLOUT, converted, fields, told

FILES = "data.val_files=[/d/aime/test.parquet,/d/math/test.parquet,/d/2024.jsonl]"
KWARGS = f"{ROLLOUT}.val_kwargs"


def test_validation_becomes_sets_with_names_of_their_own():
    found = fields(converted(FILES, "trainer.test_freq=20", "data.max_prompt_length=64"))
    sets = found["training.evaluation.sets"]
    assert [(each["name"], *each["data"]) for each in sets] == [
        (name, kind, "answerField", "maxPromptTokens")
        for name, kind in (("aime-test", "parquet"), ("math-test", "parquet"), ("d-2024", "jsonl"))
    ]
    assert found["training.evaluation.everyVersions"] == 20


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        # One response, of the most probable tokens, whatever training has.
        ([f"{ROLLOUT}.temperature=0.7", f"{ROLLOUT}.top_p=0.9"], (None, 0.0, 1.0, 0)),
        (
            [
                f"{KWARGS}.{word}"
                for word in ("n=8", "temperature=1.0", "top_p=0.7", "top_k=-1", "do_sample=True")
            ],
            (8, 1.0, 0.7, 0),
        ),
        ([f"{KWARGS}.top_k=50", f"{KWARGS}.temperature=11"], (None, 0.0, 1.0, 50)),
    ],
)
def test_how_responses_of_a_validation_are_drawn(overrides, expected):
    found = fields(converted(FILES, "trainer.test_freq=5", *overrides))
    sampling = [found[f"training.evaluation.sampling.{name}"] for name in ("temperature", "topP", "topK")]
    assert (found.get("training.evaluation.samplesPerPrompt"), *sampling) == expected


@pytest.mark.parametrize(
    ("overrides", "subject"),
    [
        ([FILES], None),
        ([FILES, "trainer.test_freq=-1"], None),
        (["trainer.test_freq=5"], "trainer.test_freq=5"),
        (["trainer.test_freq=5", "data.val_files=s3://bucket/test.parquet"], "trainer.test_freq=5"),
    ],
)
def test_without_files_or_repetition_nothing_is_evaluated(overrides, subject):
    conversion = converted(*overrides)
    assert not [path for path in fields(conversion) if path.startswith("training.evaluation")]
    words = told(conversion).get(subject, "") if subject else ""
    assert words.startswith("no file of data.val_files is known") == (subject is not None)


def test_files_whose_names_are_alike_are_told_apart():
    found = fields(converted("data.val_files=[/a/x.parquet,/b/a/x.parquet,9.parquet]", "trainer.test_freq=1"))
    assert [each["name"] for each in found["training.evaluation.sets"]] == ["a-x", "a-x-2", "set-9"]
