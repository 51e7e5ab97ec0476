"""Which fields an API server does not know, by its own words."""

import pytest

from rljob_runtime.cluster.older_definition import undeclared

_REFUSED = "failed to create typed patch object (n/j; rljob.dev/v1alpha1, Kind=RLJob): "


@pytest.mark.parametrize(
    ("message", "fields"),
    [
        (f"{_REFUSED}.status.training.load: field not declared in schema", {"load"}),
        (
            f"500 InternalError: {_REFUSED}errors:\n  .status.training.load: field not declared in schema\n"
            "  .status.training.staleness.masked: field not declared in schema",
            {"load", "staleness"},
        ),
        (f"{_REFUSED}.status.training.pools[0].busy: field not declared in schema", {"pools"}),
        (f"{_REFUSED}.status.other: field not declared in schema", set()),
        ("500 InternalError: etcdserver: request timed out", set()),
        ("RLJob is invalid: status.training.load: Invalid value", set()),
    ],
)
def test_undeclared(message: str, fields: set[str]) -> None:
    assert undeclared(message) == fields
