"""Rules that span fields: each is broken by a case here, and each case names its field."""

from collections.abc import Iterator

import pytest
from pydantic import ValidationError

from rljob_api import RLJob, Spec
from rljob_api.base import Model, Rule
from rljob_api.errors import dotted, problems, unwrap, yaml_fields
from rljob_api.pools import Head
from tests.support.broken_jobs.rules import BROKEN_RULES
from tests.support.jobs import job
from tests.support.valid_jobs import GOOD


@pytest.mark.parametrize("changes", GOOD.values(), ids=GOOD.keys())
def test_valid(changes):
    RLJob.model_validate(job(changes))


@pytest.mark.parametrize(("changes", "path", "words"), BROKEN_RULES.values(), ids=BROKEN_RULES.keys())
def test_broken(changes, path, words):
    with pytest.raises(ValidationError) as caught:
        RLJob.model_validate(job(changes))
    found = problems(caught.value, RLJob)
    assert [dotted(problem.path) for problem in found] == [path]
    assert words in found[0].message


def test_a_rule_about_each_of_a_list_names_those_that_break_it():
    data = {"generated": {"task": "copy"}}
    sets = [
        {"name": name, "data": {**data, **more}}
        for name, more in {"a": {}, "b": {"maxPromptTokens": 16}, "c": {"maxPromptTokens": 17}}.items()
    ]
    with pytest.raises(ValidationError) as caught:
        RLJob.model_validate(job({"training.evaluation": {"sets": sets}}))
    (problem,) = problems(caught.value, RLJob)
    assert problem.message.endswith("(data.maxPromptTokens is 16, of c it is 17)")


def test_every_rule_has_a_case():
    told = []
    for changes, _, _ in BROKEN_RULES.values():
        with pytest.raises(ValidationError) as caught:
            RLJob.model_validate(job(changes))
        told += [problem.message for problem in problems(caught.value, RLJob)]
    untested = {
        rule.message for rule in all_rules(Spec) if not any(text.startswith(rule.message) for text in told)
    }
    # The three pools have rules of the same form; one pool stands for all.
    assert {text.split(" (module")[0] for text in untested} == {
        "pools.fastRollout.acceleratorsPerWorker must fit acceleratorType",
        "pools.heavyRollout.acceleratorsPerWorker must fit acceleratorType",
        "pools.fastRollout.acceleratorsPerWorker must be 1 with accelerator: cpu",
        "pools.heavyRollout.acceleratorsPerWorker must be 1 with accelerator: cpu",
    }


def test_templates_may_change_while_a_job_runs():
    pools = ("head", "trainer", "fastRollout", "heavyRollout")
    templates = [f"pools.{pool}.template" for pool in pools]
    held = [
        change.field
        for change in Spec.transitions
        if any(f"{path}.".startswith(f"{change.field}.") for path in templates)
    ]
    assert held == []
    fixed = {change.field for change in Spec.transitions}
    assert {f"pools.head.{name}" for name in yaml_fields(Head)} - fixed == {"pools.head.template"}


def test_a_trainer_smaller_than_a_tensor_group_with_a_sample_that_is_too_long():
    """No group is there to share it, and none is counted: both are told."""
    parallel = {"tensorParallel": 4, "maxTokensPerMicroBatch": 20}
    with pytest.raises(ValidationError) as caught:
        RLJob.model_validate(job({"pools.trainer.replicas": 2, "training.parallel": parallel}))
    assert {dotted(problem.path) for problem in problems(caught.value, RLJob)} == {
        "spec.training.parallel.tensorParallel",
        "spec.training.parallel.maxTokensPerMicroBatch",
    }


def test_several_broken_rules_are_told_together():
    with pytest.raises(ValidationError) as caught:
        RLJob.model_validate(
            job(
                {
                    "pools.fastRollout": {"replicas": 3, "maxReplicas": 2},
                    "training.optimizer.warmupUpdates": 5,
                    "training.async.queueCapacity": 1,
                }
            )
        )
    assert [dotted(problem.path) for problem in problems(caught.value, RLJob)] == [
        "spec.pools.fastRollout.replicas",
        "spec.training.async.queueCapacity",
        "spec.training.optimizer.warmupUpdates",
    ]


def all_rules(model: type[Model]) -> Iterator[Rule]:
    """The rules of a model and of all models below it."""
    yield from model.all_rules()
    for field in model.model_fields.values():
        below = unwrap(field.annotation)
        if isinstance(below, type) and issubclass(below, Model):
            yield from all_rules(below)
