"""Places of a manifest where something has still to be said."""

import pytest

from rljob_runtime.manifest.unset import UNSET, unset


@pytest.mark.parametrize(
    ("value", "paths"),
    [
        ({}, []),
        ({"a": "x", "b": [1, None, True]}, []),
        ({"a": {"b": UNSET}, "c": UNSET}, [("a", "b"), ("c",)]),
        ({"a": [{"b": "x"}, {"b": UNSET}]}, [("a", 1, "b")]),
        ({"a": f"{UNSET}/x", UNSET: 1}, []),
    ],
)
def test_where_it_is(value, paths):
    assert [problem.path for problem in unset(value)] == paths
