"""What a definition lacks that the operator writes, and what is left of a status then."""

from copy import deepcopy

import pytest

from rljob_operator.controller.declared import ESSENTIAL, declared, lacking
from rljob_operator.controller.definition import written_schema


def without(*path):
    """The schema that is written, without what is at the path."""
    served = deepcopy(written_schema())
    *way, last = path
    below = served
    for name in way:
        below = below[name]
    if isinstance(below, list):
        below.remove(last)
    else:
        del below[last]
    return served


DOWNS = ("properties", "scaleDowns", "items", "properties")
OLD = {
    "nothing": (written_schema(), []),
    "a field": (without("properties", "headPod"), ["status.headPod"]),
    "a field of an entry": (without(*DOWNS, "timedOut"), ["status.scaleDowns[].timedOut"]),
    "a whole list": (without("properties", "scaleDowns"), ["status.scaleDowns"]),
    "a phase": (without("properties", "phase", "enum", "Restarting"), ["status.phase: Restarting"]),
    "the status": ({}, [f"status.{name}" for name in written_schema()["properties"]]),
    "no schema, all is kept": ({"x-kubernetes-preserve-unknown-fields": True}, []),
}


@pytest.mark.parametrize(("served", "missing"), OLD.values(), ids=OLD)
def test_what_is_missing_is_named(served, missing):
    assert list(lacking(served, written_schema(), "status")) == missing


def test_what_the_definition_has_besides_is_no_matter():
    served = deepcopy(written_schema())
    served["properties"]["training"] = served["properties"]["new"] = {"type": "string"}
    assert list(lacking(served, written_schema(), "status")) == []


def test_the_runtimes_part_is_not_the_operators():
    assert "training" not in written_schema()["properties"]


def paths(schema, path):
    """All that `lacking` may name."""
    yield from (f"{path}: {value}" for value in schema.get("enum", ()))
    for name, below in schema.get("properties", {}).items():
        yield f"{path}.{name}"
        yield from paths(below, f"{path}.{name}")
    if "items" in schema:
        yield from paths(schema["items"], f"{path}[]")


def test_what_is_essential_is_in_the_status():
    assert set(paths(written_schema(), "status")) >= ESSENTIAL


CONDITIONS = [{"type": "Degraded", "status": "False"}, {"type": "Running", "status": "True"}]
STATUS = {
    "phase": "Restarting",
    "specDigest": "d",
    "conditions": [{"reason": "R", "lastTransitionTime": "t", **each} for each in CONDITIONS],
    "scaleDowns": [{"pool": "trainer", "replicas": 1, "timedOut": True}],
}
TYPES = ("properties", "conditions", "items", "properties", "type", "enum")
LEFT = {
    "all": (written_schema(), STATUS),
    "without a field": (
        without("properties", "specDigest"),
        {k: v for k, v in STATUS.items() if k != "specDigest"},
    ),
    "without a field of an entry": (
        without(*DOWNS, "timedOut"),
        STATUS | {"scaleDowns": [{"pool": "trainer", "replicas": 1}]},
    ),
    "without a condition": (
        without(*TYPES, "Degraded"),
        STATUS | {"conditions": STATUS["conditions"][1:]},
    ),
    "without a phase": (
        without("properties", "phase", "enum", "Restarting"),
        {k: v for k, v in STATUS.items() if k != "phase"},
    ),
    "all, where all is kept": ({"x-kubernetes-preserve-unknown-fields": True, "properties": {}}, STATUS),
}


@pytest.mark.parametrize(("served", "left"), LEFT.values(), ids=LEFT)
def test_what_is_not_known_is_left_out(served, left):
    assert declared(STATUS, served) == left
