"""The definition beside that of the last release: nothing changed that stored objects would feel."""

import re

import pytest
import yaml

from rljob_api import Spec
from rljob_api.crd import custom_resource_definition
from tests.support.release_changes import breaking_changes

ACCEPTED = {
    # docs/compatibility.md, "Since 0.1.0"
    "spec.training.model.random.maxPositionEmbeddings: default was 256, is 2048",
    "spec.training.evaluation.sets[].data.promptField: default was 'prompt', is None",
    "spec.training.evaluation.sets[].data.answerField: default was 'answer', is None",
    "spec.training.evaluation.sets[].data.rewardFields: default was [], is None",
    "spec.training.evaluation.sets[].data.maxPromptTokens: default was 1024, is None",
    "spec.training: rule !has(self.evaluation) || self.evaluation.sets.all(x, "
    "!has(x.data.maxPromptTokens) || x.data.maxPromptTokens <= self.data.maxPromptTokens)",
    *(
        f"spec: rule {rule.cel}"
        for rule in Spec.rules
        if rule.fields[0]
        in (
            "training.parallel.maxTokensPerMicroBatch",
            "training.parallel.contextParallel.fixed.degree",
        )
        or (rule.fields[0].endswith("acceleratorsPerWorker") and rule.fields[1:] == ("acceleratorType",))
    ),
    *(
        f"spec: rule {change.cel}"
        for change in Spec.transitions
        if change.field in ("pools.head.resources", "pools.head.sharedMemory")
    ),
    "spec.training: rule !has(self.model.random) || !has(self.model.random.experts) || "
    "self.model.random.experts.count % self.parallel.tensorParallel == 0",
    "spec.training.reward.function: maxLength was None, is 253",
    "spec.training.reward.functions[].function: maxLength was None, is 253",
    "spec.training.algorithm.advantage.custom.function: maxLength was None, is 253",
    "spec.training.algorithm.policyLoss.custom.function: maxLength was None, is 253",
    *(
        f"spec.pools.{pool}.resources.{side}.*: maxLength was None, is 32"
        for pool in ("head", "trainer", "fastRollout", "heavyRollout")
        for side in ("requests", "limits")
    ),
}
BOUNDED = re.compile(r"status\..*: (?:maxLength was None, is \d+|format was None, is 'date-time')")
"""The same: all texts of the status have got a bound, and times are times."""
RULE = {"rule": "self.a > 1", "message": "more"}
NUMBER = {"type": "integer", "minimum": 1, "maximum": 9, "default": 3}
WORD = {"type": "string", "enum": ["x", "y"], "pattern": "^x"}
BOTH = {"a": NUMBER, "b": WORD}
CHANGES = {
    # what stands in the new definition of an object with BOTH: what is told
    "nothing": ({}, []),
    "a field more": ({"properties": {**BOTH, "c": NUMBER}}, []),
    "a field less": ({"properties": {"a": NUMBER}}, ["o.b is gone"]),
    "one that must be there": ({"required": ["a"]}, ["o.a is required"]),
    "another type": (
        {"properties": {**BOTH, "a": {**NUMBER, "type": "number"}}},
        ["o.a: type was 'integer', is 'number'"],
    ),
    "another default": (
        {"properties": {**BOTH, "a": {**NUMBER, "default": 4}}},
        ["o.a: default was 3, is 4"],
    ),
    "wider": ({"properties": {**BOTH, "a": {**NUMBER, "minimum": 0, "maximum": 10}}}, []),
    "narrower": (
        {"properties": {**BOTH, "a": {**NUMBER, "minimum": 2, "maximum": 8}}},
        ["o.a: minimum was 1, is 2", "o.a: maximum was 9, is 8"],
    ),
    "a value more": ({"properties": {**BOTH, "b": {**WORD, "enum": ["x", "y", "z"]}}}, []),
    "a value less": ({"properties": {**BOTH, "b": {**WORD, "enum": ["x"]}}}, ["o.b: y is no value any more"]),
    "another pattern": (
        {"properties": {**BOTH, "b": {**WORD, "pattern": "^y"}}},
        ["o.b: pattern was '^x', is '^y'"],
    ),
    "the pattern as a rule": (
        {
            "properties": {
                **BOTH,
                "b": {
                    "type": "string",
                    "enum": ["x", "y"],
                    "x-kubernetes-validations": [{"rule": 'self.matches("^x")'}],
                },
            }
        },
        [],
    ),
    "a rule more": ({"x-kubernetes-validations": [RULE]}, ["o: rule self.a > 1"]),
    "a rule of a field more": (
        {
            "properties": {**BOTH, "c": NUMBER},
            "x-kubernetes-validations": [{"rule": "self.c > self.a", "message": "more"}],
        },
        [],
    ),
    "of a mapping's values": (
        {"additionalProperties": {**NUMBER, "maximum": 8}},
        ["o.*: maximum was 9, is 8"],
    ),
    "a default of an object, of a field more": ({"default": {"a": 3, "c": 1}}, []),
    "a default of an object, changed": (
        {"default": {"a": 4}},
        ['o: default was {"a": 3}, is {"a": 4}'],
    ),
}


@pytest.mark.parametrize(("changes", "told"), CHANGES.values(), ids=CHANGES)
def test_what_is_told(changes, told):
    before = {
        "type": "object",
        "properties": BOTH,
        "additionalProperties": NUMBER,
        "default": {"a": 3},
    }
    assert list(breaking_changes(before, {**before, **changes}, "o")) == told


def test_since_the_last_release(last_release):
    before, now = (
        definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
        for definition in (yaml.safe_load(last_release.definition.read_text()), custom_resource_definition())
    )
    assert {each for each in breaking_changes(before, now) if not BOUNDED.fullmatch(each)} == ACCEPTED
