"""Commented YAML."""

import pytest

from rljob_runtime.authoring.fields import Field, document
from rljob_runtime.authoring.write import WIDTH, manifest
from rljob_runtime.manifest.source import parse


def test_fields_are_in_the_order_of_the_api_with_their_comments():
    fields = {
        "spec.training.seed": Field(1),
        "spec.training.model.path": Field("m", "what is trained"),
        "spec.accelerator": Field("cpu", "long " * 30),
        "metadata.name": Field("x"),
    }
    long = "  # " + ("long " * 30)[: WIDTH - 5].strip()
    assert manifest(fields, ["A job."]).splitlines() == [
        "# A job.",
        "apiVersion: rljob.dev/v1alpha1",
        "kind: RLJob",
        "metadata:",
        '  name: "x"',
        "spec:",
        long,
        "  # " + " ".join(["long"] * (30 - long.count("long"))),
        "  accelerator: cpu",
        "  training:",
        "    model:",
        '      path: "m"  # what is trained',
        "    seed: 1",
    ]


@pytest.mark.parametrize(
    "value",
    [
        "plain words",
        "a/b-c_d.e:f",
        "",
        "y",
        "no",
        "null",
        "1e-6",
        "017",
        "2026-01-01",
        "a: b",
        "a #b",
        "[x]",
        "a, b",
        "{x: 1}",
        "'",
        '"',
        "\\",
        " x ",
        "two\nlines\t\u00e4\u0085",
        "*x",
        "<<",
        "---",
        "%x",
        "@x",
        5e-7,
        1e300,
        0,
        -1,
        True,
        None,
        [],
        {},
        [1, "a", {"b": [None, "c d"]}],
        {"x.y/z": {"k": "v"}, "1": "2"},
    ],
)
def test_values_are_read_back_as_they_are(value):
    fields = {"spec.training.reward.arguments": Field(value)}
    found = parse(manifest(fields, [])).value
    assert found == document(fields)
    assert type(found["spec"]["training"]["reward"]["arguments"]) is type(value)


def test_a_comment_has_no_lines_of_its_own():
    text = manifest({"spec.suspend": Field(True, "first\nsecond: x")}, [])
    assert "suspend: true  # first second: x" in text
