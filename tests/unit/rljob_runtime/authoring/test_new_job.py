"""The manifest of a new job."""

from itertools import product

import pytest

from rljob_api import RLJob
from rljob_runtime.authoring.answers import ACCELERATORS, PLACES, TASKS, Answers, Unanswerable, check
from rljob_runtime.authoring.fields import document
from rljob_runtime.authoring.new_job import lengths, new_job
from rljob_runtime.manifest.source import parse


def answers(task: str, accelerator: str, accelerators: int, where: str, data: str = "d.jsonl") -> Answers:
    example = task not in ("math", "own")
    return Answers(
        task=task,
        model=None if example else "models/q",
        data=None if example else data,
        reward="judge:score" if task == "own" else None,
        accelerator=accelerator,
        accelerators=accelerators,
        where=where,
        claim="runs" if where == "cluster" else None,
    )


def written(given: Answers) -> RLJob:
    text, fields = new_job(given)
    found = parse(text).value
    assert found == document(fields)
    return RLJob.model_validate(found)


@pytest.mark.parametrize("case", list(product(TASKS, ACCELERATORS, PLACES)), ids="-".join)
def test_every_combination_is_valid(case):
    task, accelerator, where = case
    for accelerators in (1, 2, 3, 8, 16, 33, 4096):
        given = answers(task, accelerator, accelerators, where)
        try:
            check(given)
        except Unanswerable:
            assert (accelerators, where) == (1, "cluster")
            continue
        spec = written(given).spec
        assert spec.accelerator == accelerator
        assert accelerator != "ascend" or spec.training.model.dtype == "bfloat16"
        pools = (spec.pools.trainer, spec.pools.fast_rollout)
        used = sum(pool.replicas * pool.accelerators_per_worker for pool in pools)
        # Trainer and engine share a single accelerator of one machine.
        assert used == max(2, accelerators)


@pytest.mark.parametrize(
    ("data", "source"),
    [
        ("a.jsonl", "jsonl"),
        ("A.JSONL", "jsonl"),
        ("b/c.parquet", "parquet"),
        ("b/c.Parquet", "parquet"),
        ("org/name", "hugging_face"),
        ("org/jsonl", "hugging_face"),
        ("jsonl", "hugging_face"),
    ],
)
def test_data(data, source):
    given = answers("math", "nvidia", 2, "machine", data)
    assert written(given).spec.training.data.chosen[0] == source


def test_the_example_is_that_of_the_examples_folder():
    spec = written(answers("copy", "cpu", 2, "machine")).spec
    assert spec.training.model.random is not None
    assert spec.training.reward.function == "rljob_runtime.rewards.tasks:copy"
    assert spec.training.schedule.total_steps == 320


def test_fields_of_the_data_are_those_that_are_named():
    given = Answers(
        **{**vars(answers("own", "cpu", 2, "machine")), "prompt_field": "q", "answer_field": "a.b"}
    )
    data = written(given).spec.training.data
    assert (data.prompt_field, data.answer_field, data.reward_fields) == ("q", "a.b", [])


@pytest.mark.parametrize(
    ("said", "fields"), [("also", ["also"]), ("also, meta.level", ["also", "meta.level"])]
)
def test_a_reward_of_ones_own_gets_the_fields_that_are_named(said: str, fields: list[str]) -> None:
    given = Answers(**{**vars(answers("own", "cpu", 2, "machine")), "reward_fields": said})
    assert written(given).spec.training.data.reward_fields == fields


def test_every_value_has_a_comment():
    for task in TASKS:
        _, fields = new_job(answers(task, "nvidia", 8, "cluster"))
        assert [path for path, field in fields.items() if not field.comment] == []


@pytest.mark.parametrize(
    ("positions", "expected"),
    [(None, (1024, 2048)), (32768, (1024, 2048)), (2048, (682, 1366)), (128, (42, 86)), (2, (1, 1))],
)
def test_a_sample_fits_into_the_model(positions, expected):
    assert lengths(positions) == expected


def test_a_volume_in_a_cluster_and_none_on_a_machine():
    assert written(answers("math", "nvidia", 4, "cluster")).spec.storage.volume == {
        "persistentVolumeClaim": {"claimName": "runs"}
    }
    _, fields = new_job(answers("math", "nvidia", 4, "machine"))
    assert not any(path.startswith("spec.storage") for path in fields)
