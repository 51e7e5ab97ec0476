"""What a definition lacks that the operator writes."""

from copy import deepcopy

import pytest

from rljob_operator.controller.definition import lacking, written_schema


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
    assert list(lacking(served, written_schema())) == missing


def test_what_the_definition_has_besides_is_no_matter():
    served = deepcopy(written_schema())
    served["properties"]["training"] = served["properties"]["new"] = {"type": "string"}
    assert list(lacking(served, written_schema())) == []


def test_the_runtimes_part_is_not_the_operators():
    assert "training" not in written_schema()["properties"]
