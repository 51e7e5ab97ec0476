"""Measured values that `Assumptions` does not allow."""

import pytest
from pydantic import ValidationError

from rljob_runtime.trace.forecast.bounded import bounded


@pytest.mark.parametrize(
    ("values", "expected", "notes"),
    [
        ({"lengths": {"mean": 0.5}}, {"lengths": {"mean": 1}}, ["lengths.mean: 0.5", "1 is the least"]),
        (
            {"engines": {"heavy": {"secondsPerKvToken": 2.5}}},
            {"engines": {"heavy": {"secondsPerKvToken": 1}}},
            ["engines.heavy.secondsPerKvToken: 2.5", "1 is the most"],
        ),
        ({"weightSyncSeconds": 2e6}, {"weightSyncSeconds": 1e6}, ["2,000,000 was", "1,000,000 is the most"]),
        ({"weightSyncSeconds": 2.0}, {"weightSyncSeconds": 2.0}, []),
    ],
)
def test_values_are_brought_within_what_is_allowed(
    values: dict[str, object], expected: dict[str, object], notes: list[str]
) -> None:
    before = repr(values)
    found, told = bounded(values)
    assert found == expected and len(told) == bool(notes)
    assert all(note in told[0] for note in notes)
    assert repr(values) == before, "what is given stays as it is"


def test_a_value_that_is_no_number_is_no_matter_of_bounds() -> None:
    with pytest.raises(ValidationError):
        bounded({"weightSyncSeconds": float("nan")})
