"""Times of the tiers are recorded only of a run that left nothing out."""

import pytest

from tests.bench.suite import figures
from tools.tiers.results import Counts, Result, document

RESULTS = [Result("lint", "passed", 15.0), Result("unit", "passed", 37.0, Counts(900, 0, 0))]


def test_every_tier_and_the_whole():
    made = [(each.name, each.value) for each in figures(document(RESULTS, 40.0), 38.0)]
    whole = [("make check", 38.0), ("tier lint", 15.0), ("tier unit, 900 tests", 37.0), ("make test", 40.0)]
    assert made == whole


@pytest.mark.parametrize("outcome", ["failed", "skipped"])
def test_no_times_where_a_tier_did_not_pass(outcome):
    with pytest.raises(ValueError, match="not every tier passed: node"):
        figures(document([*RESULTS, Result("node", outcome, 3.0)], 40.0), None)
