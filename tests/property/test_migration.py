"""Requests that move while engines die, leave and get new weights: nothing is lost, doubled or altered, and
no policy strands a request. `tests/bench/migration_schedules.py` does the same ten thousand times."""

from collections import Counter

import pytest

from tests.support.simulated.migrating_job import POLICIES, MigratingJob, schedule

PARTS, EACH = 10, 20


@pytest.mark.parametrize("part", range(PARTS))
def test_every_sample_arrives_whole_once_and_unaltered(part: int) -> None:
    for seed in range(part * EACH, (part + 1) * EACH):
        job = MigratingJob(schedule(seed)).run()
        assert job.wrong == [], f"schedule {seed}"


def test_the_schedules_do_what_they_are_for() -> None:
    """Among them are all policies, all ways of taking new weights, and each kind of thing that may happen."""
    schedules = [schedule(seed) for seed in range(PARTS * EACH)]
    assert {each.policy for each in schedules} == set(POLICIES)
    assert {each.scenario.in_flight for each in schedules} == {"keep", "abort", "wait", None}
    seen: Counter[str] = Counter()
    for seed in range(EACH):
        seen += MigratingJob(schedule(seed)).run().seen
    assert len(seen) == 11 and min(seen.values()) > 2, seen
