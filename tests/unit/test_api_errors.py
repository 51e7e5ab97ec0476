"""What people are told about fields that are wrong by themselves."""

import pytest
from pydantic import ValidationError

from rljob_api import RLJob
from rljob_api.errors import dotted, nearest, problems
from tests.jobs import REMOVED, job


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        (
            {"training.async.maxStalenes": 1},
            "spec.training.async.maxStalenes: unknown field. Did you mean maxStaleness?",
        ),
        (
            {"training.profiling.zzz": 1},
            "spec.training.profiling.zzz: unknown field (known here: events).",
        ),
        (
            {"accelerator": "cpus"},
            "spec.accelerator: 'cpus' is not allowed; it must be one of nvidia, ascend, cpu. "
            "Did you mean cpu?",
        ),
        ({"/kind": "Job"}, "kind: 'Job' is not allowed; it must be RLJob."),
        (
            {"training.data.generated.task": REMOVED},
            "spec.training.data.generated.task: must be set (copy: repeat the prompt's letters).",
        ),
        (
            {"pools.trainer.replicas": 0},
            "spec.pools.trainer.replicas: 0 is below the smallest allowed value 1.",
        ),
        (
            {"pools.trainer.replicas": 5000},
            "spec.pools.trainer.replicas: 5000 is above the largest allowed value 4096.",
        ),
        ({"training.rollout.temperature": 0}, "spec.training.rollout.temperature: 0 is not above 0.0."),
        (
            {"training.algorithm.policyLoss": {"clip": {"low": 1}}},
            "spec.training.algorithm.policyLoss.clip.low: 1 is not below 1.0.",
        ),
        (
            {"pools.trainer.replicas": "two"},
            "spec.pools.trainer.replicas: must be a whole number (found 'two').",
        ),
        ({"pools.trainer.replicas": "2"}, "spec.pools.trainer.replicas: must be a whole number (found '2')."),
        (
            {"pools.trainer.replicas": True},
            "spec.pools.trainer.replicas: must be a whole number (found true).",
        ),
        (
            {"training.optimizer.learningRate": "1e-3"},
            "spec.training.optimizer.learningRate: must be a number (found '1e-3').",
        ),
        (
            {"training.optimizer.learningRate": float("nan")},
            "spec.training.optimizer.learningRate: must be a finite number (found nan).",
        ),
        (
            {"training.data.shuffle": "yes"},
            "spec.training.data.shuffle: must be true or false (found 'yes').",
        ),
        ({"pools": [1]}, "spec.pools: must be a mapping (found a list)."),
        ({"training.async": None}, "spec.training.async: must be a mapping (found nothing)."),
        ({"training.reward.arguments": 3}, "spec.training.reward.arguments: must be a mapping (found 3)."),
        ({"training.data.promptField": ""}, "spec.training.data.promptField: must not be empty."),
        ({"/metadata.name": "a" * 41}, "metadata.name: has more than 40 characters."),
        (
            {"/metadata.name": "Copy_1"},
            "metadata.name: 'Copy_1' does not have the form ^[a-z]([-a-z0-9]*[a-z0-9])?$.",
        ),
    ],
)
def test_one_line_says_it_all(changes, told):
    with pytest.raises(ValidationError) as caught:
        RLJob.model_validate(job(changes))
    assert [str(problem) for problem in problems(caught.value, RLJob)] == [told]


@pytest.mark.parametrize(
    ("word", "meant"),
    [
        ("maxStalenes", "maxStaleness"),
        ("maxstaleness", "maxStaleness"),
        ("max_staleness", "maxStaleness"),
        ("stepsPerVersions", "stepsPerVersion"),
        ("qqq", None),
    ],
)
def test_nearest(word, meant):
    assert nearest(word, ["maxStaleness", "stepsPerVersion", "weightSync", "queueCapacity"]) == meant


@pytest.mark.parametrize(
    ("path", "text"), [((), ""), (("spec",), "spec"), (("spec", "items", 3, "name"), "spec.items[3].name")]
)
def test_dotted(path, text):
    assert dotted(path) == text
