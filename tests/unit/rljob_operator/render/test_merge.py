"""Merging a job's pod template over ours."""

import copy

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rljob_operator.render.merge import merge

EXEC = {"preStop": {"exec": {"command": ["wait"]}}}

TABLE = {
    "a key that only one has stays": ({"a": 1}, {"b": 2}, {"a": 1, "b": 2}),
    "a value is replaced": ({"a": 1}, {"a": 2}, {"a": 2}),
    "maps are merged": (
        {"securityContext": {"runAsUser": 1000, "fsGroup": 1000}},
        {"securityContext": {"runAsUser": 7}},
        {"securityContext": {"runAsUser": 7, "fsGroup": 1000}},
    ),
    "null removes": (
        {"securityContext": {"runAsUser": 1, "a": 2}},
        {"securityContext": {"runAsUser": None}},
        {"securityContext": {"a": 2}},
    ),
    "null of what is not there": ({}, {"a": None, "b": {"c": None}}, {"b": {}}),
    "a container of the same name is merged, in its place": (
        {"containers": [{"name": "ray", "image": "a"}, {"name": "driver"}]},
        {"containers": [{"name": "log"}, {"name": "ray", "tty": True}]},
        {"containers": [{"name": "ray", "image": "a", "tty": True}, {"name": "driver"}, {"name": "log"}]},
    ),
    "init containers too": (
        {},
        {"initContainers": [{"name": "fetch", "image": "a"}]},
        {"initContainers": [{"name": "fetch", "image": "a"}]},
    ),
    "a variable is replaced whole": (
        {"env": [{"name": "A", "valueFrom": {"fieldRef": {}}}, {"name": "B", "value": "b"}]},
        {"env": [{"name": "A", "value": "a"}, {"name": "C", "value": "c"}]},
        {"env": [{"name": "A", "value": "a"}, {"name": "B", "value": "b"}, {"name": "C", "value": "c"}]},
    ),
    "a volume is replaced whole: it has one source": (
        {"volumes": [{"name": "tmp", "emptyDir": {}}]},
        {"volumes": [{"name": "tmp", "ephemeral": {}}, {"name": "data", "nfs": {}}]},
        {"volumes": [{"name": "tmp", "ephemeral": {}}, {"name": "data", "nfs": {}}]},
    ),
    "mounts go by their path": (
        {"volumeMounts": [{"name": "tmp", "mountPath": "/tmp"}]},
        {
            "volumeMounts": [
                {"name": "big", "mountPath": "/tmp", "readOnly": True},
                {"name": "tmp", "mountPath": "/x"},
            ]
        },
        {
            "volumeMounts": [
                {"name": "big", "mountPath": "/tmp", "readOnly": True},
                {"name": "tmp", "mountPath": "/x"},
            ]
        },
    ),
    "ports go by number and protocol, TCP where none is said": (
        {"ports": [{"containerPort": 80, "name": "a"}]},
        {
            "ports": [
                {"containerPort": 80, "protocol": "TCP", "name": "b"},
                {"containerPort": 80, "protocol": "UDP"},
            ]
        },
        {
            "ports": [
                {"containerPort": 80, "protocol": "TCP", "name": "b"},
                {"containerPort": 80, "protocol": "UDP"},
            ]
        },
    ),
    "tolerations are appended once": (
        {"tolerations": [{"key": "gpu"}]},
        {"tolerations": [{"key": "gpu"}, {"key": "spot"}]},
        {"tolerations": [{"key": "gpu"}, {"key": "spot"}]},
    ),
    "a handler is replaced whole: it has one kind": (
        {"lifecycle": EXEC},
        {"lifecycle": {"preStop": {"httpGet": {"port": 80}}, "postStart": {"sleep": {"seconds": 1}}}},
        {"lifecycle": {"preStop": {"httpGet": {"port": 80}}, "postStart": {"sleep": {"seconds": 1}}}},
    ),
    "other lists are replaced": ({"command": ["a", "b"]}, {"command": ["c"]}, {"command": ["c"]}),
    "another type replaces": ({"a": {"b": 1}}, {"a": [1]}, {"a": [1]}),
    "a list over a map": ({"env": {"b": 1}}, {"env": [{"name": "A"}]}, {"env": [{"name": "A"}]}),
    "items without a name are appended": (
        {"containers": [{"name": "ray"}]},
        {"containers": [{"image": "x"}, "text"]},
        {"containers": [{"name": "ray"}, {"image": "x"}, "text"]},
    ),
}


@pytest.mark.parametrize(("lower", "upper", "expected"), TABLE.values(), ids=TABLE)
def test_merge(lower, upper, expected):
    before = copy.deepcopy((lower, upper))
    assert merge(lower, upper) == expected
    assert (lower, upper) == before


def items(field, values):
    item = st.fixed_dictionaries({field: st.sampled_from("abc")}, optional={"value": values})
    return st.lists(item, unique_by=lambda each: each[field], max_size=3)


LEAVES = st.none() | st.integers(0, 3) | st.text("xy", max_size=2)
TEMPLATES = st.recursive(
    st.dictionaries(st.sampled_from(["a", "b", "preStop"]), LEAVES, max_size=3),
    lambda inner: st.fixed_dictionaries(
        {},
        optional={
            "spec": inner,
            "containers": items("name", inner),
            "env": items("name", LEAVES),
            "volumeMounts": items("mountPath", LEAVES),
            "tolerations": st.lists(st.dictionaries(st.sampled_from("kv"), st.integers(0, 2)), max_size=3),
            "command": st.lists(st.text("xy", max_size=2), max_size=2),
        },
    ),
    max_leaves=8,
)


@given(TEMPLATES, TEMPLATES)
def test_merging_again_changes_nothing(lower, upper):
    once = merge(lower, upper)
    assert merge(once, upper) == once


@given(TEMPLATES, TEMPLATES)
def test_named_items_keep_their_order_and_lose_none(lower, upper):
    merged = merge(lower, upper)
    if "containers" in merged:
        below = [item["name"] for item in lower.get("containers", [])]
        names = [item["name"] for item in merged["containers"]]
        assert names[: len(below)] == below
        assert set(names) == {*below, *(item["name"] for item in upper.get("containers", []))}
        assert len(set(names)) == len(names)
