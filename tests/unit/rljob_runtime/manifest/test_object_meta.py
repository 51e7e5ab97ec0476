"""Metadata that a cluster would refuse or drop: each is a warning, and what it takes is none."""

from typing import Any

import pytest
import yaml

from rljob_runtime.manifest.checks import check
from rljob_runtime.manifest.load import read
from rljob_runtime.manifest.object_meta import metadata_doubts
from tests.support.jobs import job

QUEUED = {"kueue.x-k8s.io/queue-name": "team-a", "a": "", "A.b_c-d": "V.w_x-1"}
DUMPED = {
    "uid": "1",
    "resourceVersion": "2",
    "creationTimestamp": "now",
    "managedFields": [],
    "generation": 1,
}


@pytest.mark.parametrize(
    ("metadata", "told"),
    [
        ({}, []),
        ({"namespace": "team-1", "labels": QUEUED, "annotations": {"Example.COM/a": "any text"}}, []),
        (DUMPED, []),
        ({"namespace": "", "annotations": None}, []),
        (
            {"lables": {"a": "b"}},
            [
                "metadata.lables: is no field of Kubernetes' metadata: kubectl refuses it, and an API server "
                "drops it. Did you mean labels?"
            ],
        ),
        ({"zzz": 1}, ["metadata.zzz: is no field of Kubernetes' metadata"]),
        ({"namespace": "A B"}, ["metadata.namespace: 'A B' is no name of a namespace, and a cluster's API"]),
        ({"namespace": "a" * 64}, ["metadata.namespace: "]),
        ({"namespace": "a-"}, ["metadata.namespace: "]),
        (
            {"labels": {"a b": "c"}},
            ["metadata.labels.a b: the key is no name to Kubernetes, and a cluster's"],
        ),
        ({"labels": {"a": "c d"}}, ["metadata.labels.a: 'c d' is no value of a label, and a cluster's API"]),
        ({"labels": {"a": "c" * 64}}, ["metadata.labels.a: "]),
        ({"labels": {"A.com/a": "c", "/a": "c"}}, ["metadata.labels.A.com/a: ", "metadata.labels./a: "]),
        (
            {"annotations": {"a": 1}},
            ["metadata.annotations.a: is no text, and a cluster's API server refuses"],
        ),
        ({"annotations": {"a b": "1"}}, ["metadata.annotations.a b: the key is no name"]),
        ({"annotations": ["a"]}, ["metadata.annotations: is no mapping of texts"]),
    ],
)
def test_what_is_told(metadata: dict[str, Any], told: list[str]) -> None:
    found = list(map(str, metadata_doubts({"name": "test", **metadata})))
    assert len(found) == len(told), found
    assert all(each.startswith(words) for each, words in zip(found, told, strict=True)), found


def test_they_are_warnings_with_their_lines(tmp_path: Any) -> None:
    manifest = tmp_path / "job.yaml"
    manifest.write_text(yaml.safe_dump(job({"/metadata.lables": {"a": "b"}})))
    errors, warnings = check(read(manifest))
    assert errors == []
    (warning,) = warnings
    assert warning.problem.path == ("metadata", "lables")
    assert "lables" in manifest.read_text().splitlines()[warning.line - 1]
