"""Which values a field can have."""

import pytest

from rljob_runtime.authoring.fields import about, refusal


@pytest.mark.parametrize(
    ("path", "value", "words"),
    [
        ("spec.training.seed", 3, None),
        ("spec.training.seed", -1, "-1 is below the smallest allowed value 0"),
        ("spec.training.seed", "3", "must be a whole number (found '3'): write it without quotes"),
        ("spec.training.optimizer.schedule", "polynomial", "is not allowed"),
        ("spec.training.reward.function", "judge", "must be module:function"),
        # Whether it divides the trainer's ranks is a matter of other fields.
        ("spec.training.parallel.tensorParallel", 2, None),
        ("spec.training.model.path", "", "must not be empty"),
        ("metadata.name", "A", "must be a name"),
    ],
)
def test_refusal(path, value, words):
    found = refusal(path, value)
    assert (found is None) if words is None else (found is not None and words in found), found


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("spec.training.rollout.maxResponseTokens", "longest response, in tokens"),
        ("spec.training.algorithm.kl.coefficient", "weight of the penalty in the loss"),
        ("spec.training.optimizer.epsilon", "AdamW's epsilon"),
        ("spec.no.such.field", ""),
    ],
)
def test_what_the_reference_says(path, words):
    assert about(path) == words
