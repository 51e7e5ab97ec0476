"""A manifest with fields that are wrong: of what it refers to, the parts that are right are checked too."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from rljob_api.errors import Path as Place
from rljob_runtime.cli import main
from rljob_runtime.manifest.right_parts import follows_from_none, without
from tests.support.jobs import REMOVED, job

TRAINING = ("spec", "training")


@pytest.mark.parametrize(
    ("place", "wrong", "told"),
    [
        (("data", "jsonl"), [("async", "maxStalenes")], True),
        (("data", "jsonl"), [("tokenizer", "pth")], False),
        (("data", "jsonl"), [("evaluation", "sets", 0, "nmae")], True),
        (("evaluation", "sets", 0, "data", "jsonl"), [("data", "promptFild")], False),
        (("model", "path"), [("data", "promptFild")], True),
        (("model", "path"), [("model", "dtpye")], False),
        (("model", "path"), [()], False),
        (("reward", "function"), [("model", "dtpye"), ("data", "x")], True),
        (("checkpoint", "path"), [("async", "maxStalenes")], True),
        (("checkpoint", "path"), [("checkpoint", "kepe")], False),
        (("rollout", "maxResponseTokens"), [("async", "maxStalenes")], False),
    ],
)
def test_what_follows_from_no_wrong_field(place: Place, wrong: list[Place], told: bool) -> None:
    assert follows_from_none((*TRAINING, *place), [(*TRAINING, *path) for path in wrong]) == told


@pytest.mark.parametrize(
    ("paths", "left"),
    [
        ([], {"a": {"b": [1, 2, 3]}, "c": 4}),
        ([("c",)], {"a": {"b": [1, 2, 3]}}),
        ([("a", "b", 0), ("a", "b", 2)], {"a": {"b": [2]}, "c": 4}),
        ([("a", "b"), ("a", "b", 1)], {"a": {}, "c": 4}),
        ([("a", "gone", "x"), ("a", "b", 7), ("c", "x"), ()], {"a": {"b": [1, 2, 3]}, "c": 4}),
    ],
)
def test_without(paths: list[Place], left: dict[str, Any]) -> None:
    document = {"a": {"b": [1, 2, 3]}, "c": 4}
    assert without(document, paths) == left
    assert document == {"a": {"b": [1, 2, 3]}, "c": 4}


GONE = {
    "training.model": {"path": "gone"},
    "training.tokenizer": REMOVED,
    "training.data": {"jsonl": {"path": "gone.jsonl"}},
}


@pytest.mark.parametrize(
    ("changes", "fields"),
    [
        (
            GONE | {"training.async.maxStalenes": 1},
            ["training.async.maxStalenes", "training.data.jsonl", "training.model.path"],
        ),
        # Which data are meant is not known while a field of theirs is wrong.
        (GONE | {"training.data.promptFeild": "q"}, ["training.data.promptFeild", "training.model.path"]),
        # Without the field there is no schedule, and without that no job.
        (
            GONE | {"training.schedule": {"totalSteps": 0, "promptsPerBatch": 4}},
            ["training.data.jsonl", "training.model.path", "training.schedule.totalSteps"],
        ),
        (
            GONE | {"training.schedule": {"totalStep": 4, "promptPerBatch": 4}},
            [
                "training.data.jsonl",
                "training.model.path",
                "training.schedule.promptPerBatch",
                "training.schedule.totalStep",
            ],
        ),
        # What lacks a field is left out whole, and what that leaves empty.
        (
            GONE | {"training.evaluation": {"sets": [{"name": "held", "json": 1}]}},
            [
                "training.data.jsonl",
                "training.evaluation.sets[0].data",
                "training.evaluation.sets[0].json",
                "training.model.path",
            ],
        ),
        (GONE | {"training.reward": REMOVED}, ["training.reward"]),
        (GONE | {"accelerator": "tpu"}, ["accelerator", "training.data.jsonl", "training.model.path"]),
    ],
)
def test_a_misspelt_field_hides_no_missing_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], changes: dict[str, Any], fields: list[str]
) -> None:
    manifest = tmp_path / "job.yaml"
    manifest.write_text(yaml.safe_dump(job(changes), sort_keys=False))
    assert main(["validate", str(manifest)]) == 2
    *told, last = capsys.readouterr().err.splitlines()
    assert sorted(each.split("  ")[1].split(": ")[0].removeprefix("spec.") for each in told) == fields
    assert last.startswith(f"{len(fields)} error")
