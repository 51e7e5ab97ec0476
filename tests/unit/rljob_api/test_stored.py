"""RLJobs under a definition of another release."""

from functools import reduce

import pytest

from rljob_api import RLJob
from rljob_api.stored import DEEPEST, StoredError, TooDeep, known_part, name_fields, read_stored
from tests.support.jobs import REMOVED, job

ENGINE = "training.rollout.engine"
LEFT_OUT = {
    "nothing": ({}, []),
    "a default of a newer definition": ({"runPolicy.retryLimit": 7}, ["spec.runPolicy.retryLimit"]),
    "a block with defaults": ({"audit": {"level": "all", "keep": {"days": 3}}}, ["spec.audit"]),
    "a list": ({"hooks": [{"name": "a"}]}, ["spec.hooks"]),
    "nothing, said": ({"runPolicy.retryLimit": None}, ["spec.runPolicy.retryLimit"]),
    "beside the envelope's fields": ({"/extra": 1}, ["extra"]),
    "within the chosen member of a union": (
        {f"{ENGINE}.torch": {"threads": 4}},
        ["spec.training.rollout.engine.torch.threads"],
    ),
    "beside the chosen member of a union": (
        {ENGINE: {"torch": {}, "warmUp": {"requests": 2}}},
        ["spec.training.rollout.engine.warmUp"],
    ),
    "at several depths": (
        {"x": 1, "pools.trainer.y": {}, "training.model.random.z": "z"},
        ["spec.pools.trainer.y", "spec.training.model.random.z", "spec.x"],
    ),
    "nothing of a field that is passed on as it is": (
        {"pools.trainer.template": {"spec": {"newInKubernetes": 1}}},
        [],
    ),
    "nothing of metadata": ({"/metadata.managedFields": [], "/metadata.uid": "u"}, []),
}


def without(document, paths):
    for path in paths:
        *way, last = path.split(".")
        below = document
        for part in way:
            below = below[part]
        del below[last]
    return document


@pytest.mark.parametrize(("changes", "paths"), LEFT_OUT.values(), ids=LEFT_OUT)
def test_unknown_fields_are_left_out_and_named(changes, paths):
    read = read_stored(RLJob, job(changes))
    assert list(read.left_out) == paths
    assert read.value == RLJob.model_validate(without(job(changes), paths))


REFUSED = {
    "a choice": (
        {ENGINE: {"mlx": {"threads": 4}}},
        "spec.training.rollout.engine.mlx: unknown here (known: vllm, torch).",
    ),
    "a choice of a union that need not be set": (
        {"training.rollout.routing": {"greedy": {}}},
        "spec.training.rollout.routing.greedy: unknown here (known: ",
    ),
    "a choice, and a field beside it": (
        {ENGINE: {"mlx": {}, "warmUp": 1}},
        "spec.training.rollout.engine.mlx: unknown here (known: vllm, torch).; "
        "spec.training.rollout.engine.warmUp: unknown here",
    ),
    "a choice, the known ones being nothing": (
        {ENGINE: {"mlx": {}, "torch": None}},
        "spec.training.rollout.engine.mlx: unknown here",
    ),
    "a choice whose value is nothing is none": (
        {ENGINE: {"mlx": None}},
        "spec.training.rollout.engine: set exactly one of vllm, torch (found none).",
    ),
    "a value": (
        {"imagePullPolicy": "Sometimes", "new": 1},
        "spec.imagePullPolicy: 'Sometimes' is not allowed; it must be one of Always, IfNotPresent, Never.",
    ),
    "a value out of bounds": (
        {"runPolicy.backoffLimit": 5000, "new": 1},
        "spec.runPolicy.backoffLimit: 5000 is",
    ),
    "a rule": ({"training.optimizer.warmupUpdates": 5, "new": 1}, "warmupUpdates must not be above"),
    "what a newer definition does not demand": (
        {"training.data": REMOVED, "new": 1},
        "spec.training.data: must",
    ),
    "two members of a union": ({ENGINE: {"torch": {}, "vllm": {}}}, "(found vllm and torch)."),
}


@pytest.mark.parametrize(("changes", "words"), REFUSED.values(), ids=REFUSED)
def test_what_cannot_be_left_out_is_refused_by_name(changes, words):
    with pytest.raises(StoredError) as caught:
        read_stored(RLJob, job(changes))
    assert words in str(caught.value)
    # What is left out is no reason.
    assert "unknown field" not in str(caught.value)


def test_what_is_left_out_of_a_document_is_not_validated():
    assert known_part(RLJob, {"spec": {"suspend": "no", "new": 1}}) == {"spec": {"suspend": "no"}}


def test_a_few_fields_are_named():
    assert name_fields(["a", "b"]) == "a, b"
    assert name_fields([*"abcdefg"]) == "a, b, c, d, e and 2 more"


def nested(levels, outer):
    """An object in which objects or lists stand in each other so often, the object included."""
    inner = 1
    for _ in range(levels - 1):
        inner = outer(inner)
    return {"a": inner}


class TestDeep:
    @pytest.mark.parametrize("levels", [DEEPEST + 1, 100_000])
    @pytest.mark.parametrize("outer", [lambda inner: {"a": inner}, lambda inner: [0, inner, {}]])
    @pytest.mark.parametrize("field", ["pools.head.template", "pools.trainer.template", "storage.volume"])
    def test_a_field_of_too_many_levels_is_refused_by_name(self, field, outer, levels):
        document = job({field: {}})
        *way, last = f"spec.{field}".split(".")
        reduce(dict.__getitem__, way, document)[last] = nested(levels, outer)
        with pytest.raises(TooDeep, match=f"^spec.{field}: must not be nested deeper than {DEEPEST} levels"):
            read_stored(RLJob, document)

    def test_as_many_levels_as_are_allowed(self):
        template = nested(DEEPEST, lambda inner: {"a": inner})
        read = read_stored(
            RLJob, job({"pools.head.template": template, "/metadata.managedFields": [[template]]})
        )
        assert read.value.spec.pools.head.template == template
