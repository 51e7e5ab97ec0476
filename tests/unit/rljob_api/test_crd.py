"""The generated CustomResourceDefinition and field reference."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from rljob_api.base import Model, OneOf
from rljob_api.crd import custom_resource_definition
from rljob_api.errors import unwrap, yaml_fields
from rljob_api.job import Spec
from rljob_api.reference import reference
from rljob_runtime.cli import main
from tests.support.last_applied import ANNOTATION, LIMIT, last_applied

ROOT = Path(__file__).parents[3]
WRITTEN = ROOT / "crds" / "rljobs.rljob.dev.yaml"


def test_the_written_crd_is_fresh(capsys):
    assert main(["crd"]) == 0
    assert WRITTEN.read_text() == capsys.readouterr().out, "run `make crds`"


def test_the_written_reference_is_fresh():
    assert (ROOT / "docs" / "rljob-reference.md").read_text() == reference(), "run `make crds`"


def test_kubectl_apply_can_keep_it_in_an_annotation():
    """It writes all that was applied into an annotation of it, and the API server refuses an object whose
    annotations are too large: a definition that outgrows that can be made with `kubectl create` alone. Other
    limits are far: etcd takes 1.5 MB of an object, a release of Helm 1 MB, compressed."""
    kept = last_applied(custom_resource_definition()).encode()
    # A quarter is left for what others annotate, and for a release that needs more in a hurry.
    assert len(ANNOTATION) + len(kept) < LIMIT * 3 / 4


def test_structural():
    """https://kubernetes.io/docs/tasks/extend-kubernetes/custom-resources/custom-resource-definitions/"""
    for path, schema in schemas(version()["schema"]["openAPIV3Schema"]):
        free_form = schema.get("x-kubernetes-preserve-unknown-fields", False)
        assert "type" in schema, path
        assert not {"$ref", "anyOf", "oneOf", "allOf", "const"} & schema.keys(), path
        if schema["type"] == "object" and path != "metadata":
            assert free_form + ("properties" in schema) + ("additionalProperties" in schema) == 1, path
        for bound in ("exclusiveMinimum", "exclusiveMaximum"):
            assert schema.get(bound) in (None, True), path
            assert bound not in schema or bound.replace("exclusiveM", "m") in schema, path


def test_every_field_is_described():
    for path, schema in schemas(version()["schema"]["openAPIV3Schema"]):
        if path not in ("", "metadata") and not (path.endswith("[]") and schema["type"] != "object"):
            assert schema.get("description"), path


def test_every_subresource_and_column_path_is_a_field():
    root = version()["schema"]["openAPIV3Schema"]
    known = {f".{path}" for path, _ in schemas(root)} | {".metadata.creationTimestamp"}
    columns = version()["additionalPrinterColumns"]
    paths = {re.sub(r"\[\?.*?\]", "[]", column["jsonPath"]) for column in columns}
    paths |= set(version()["subresources"]["scale"].values())
    assert paths <= known


@pytest.mark.parametrize(
    ("path", "part"),
    [
        ("spec.accelerator", {"type": "string", "enum": ["nvidia", "ascend", "cpu"], "default": "nvidia"}),
        ("spec.pools.heavyRollout.replicas", {"minimum": 0, "maximum": 4096, "default": 0}),
        ("spec.training.rollout.temperature", {"minimum": 0, "exclusiveMinimum": True, "default": 1.0}),
        ("spec.training.rollout.engine", {"default": None, "x-kubernetes-map-type": "atomic"}),
        ("spec.training.rollout.engine.vllm", {"default": None, "x-kubernetes-map-type": None}),
        ("spec.training.rollout.engine.vllm.kvCacheGiB", {"default": 1.0}),
        ("spec.training.async", {"default": {
            "maxStaleness": 1.0, "stepsPerVersion": 1, "staleTokens": "wait"}}),
        ("spec.training.algorithm.policyLoss.clip.dual", {"nullable": True, "default": 3.0}),
        ("spec.training.reward.arguments", {"x-kubernetes-preserve-unknown-fields": True, "default": {}}),
        ("spec.training.schedule", {"required": None}),
        ("spec.training", {"required": ["model", "data", "reward", "schedule"]}),
    ],
)  # fmt: skip
def test_a_field(path: str, part: dict[str, Any]):
    schema = dict(schemas(version()["schema"]["openAPIV3Schema"]))[path]
    assert {key: schema.get(key) for key in part} == part


def test_no_choice_is_stored_by_default():
    """`kubectl apply` of another member would leave it beside the one that was stored."""
    unions = [(path, model) for path, model in models(Spec, "spec") if issubclass(model, OneOf)]
    assert len(unions) > 8
    root = version()["schema"]["openAPIV3Schema"]
    defaults = {path: schema["default"] for path, schema in schemas(root) if "default" in schema}
    filled_in = {f"{path}{below}" for path, value in defaults.items() for below in paths(value)}
    assert not filled_in & {path for path, _ in unions}
    known = dict(schemas(root))
    assert all(known[path]["x-kubernetes-map-type"] == "atomic" for path, _ in unions)


def models(model: type[Model], path: str) -> Iterator[tuple[str, type[Model]]]:
    """Each model in a model, with its dotted path."""
    yield path, model
    for name, field in yaml_fields(model).items():
        below = unwrap(field.annotation)
        if isinstance(below, type) and issubclass(below, Model):
            yield from models(below, f"{path}.{name}")


def paths(value: Any) -> Iterator[str]:
    """The dotted path of each value in a value, the empty one for itself."""
    yield ""
    if isinstance(value, dict):
        for name, below in value.items():
            yield from (f".{name}{rest}" for rest in paths(below))


def version() -> dict[str, Any]:
    found: dict[str, Any] = custom_resource_definition()["spec"]["versions"][0]
    return found


def schemas(schema: dict[str, Any], path: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    """Each schema in a schema, with its dotted path."""
    yield path, schema
    for name, below in schema.get("properties", {}).items():
        yield from schemas(below, f"{path}.{name}" if path else name)
    if "items" in schema:
        yield from schemas(schema["items"], f"{path}[]")


def test_the_written_crd_is_plain_yaml():
    assert yaml.safe_load(WRITTEN.read_text()) == custom_resource_definition()


def test_all_that_a_job_may_write_is_bounded():
    """Its driver writes the status, and the operator keeps those of all jobs in memory."""
    status = version()["schema"]["openAPIV3Schema"]["properties"]["status"]
    unbounded = [path for path, schema in schemas(status) if largest(schema) is None]
    assert unbounded == []
    assert largest(status["properties"]["training"]) < 300_000  # etcd takes 1.5 MB of an object


def largest(schema: dict[str, Any]) -> int | None:
    """Characters of the largest JSON that the schema allows; None where there is no bound."""
    match schema["type"]:
        case "object":
            below = [(len(name), largest(each)) for name, each in schema.get("properties", {}).items()]
        case "array":
            below = [(0, largest(schema["items"]))] * schema.get("maxItems", 0)
            if "maxItems" not in schema:
                return None
        case "string":
            words = schema.get("enum")
            return max(map(len, words)) if words else schema.get("maxLength")
        case _:
            return 24
    return None if any(size is None for _, size in below) else sum(name + size + 6 for name, size in below)
