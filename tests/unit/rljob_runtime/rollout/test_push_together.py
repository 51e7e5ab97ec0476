"""After a push engines answer one after the other, and get requests together: in virtual time."""

import asyncio
from collections import Counter

import pytest

from rljob_runtime.engines.fake import FakeEngine
from rljob_runtime.engines.protocol import PauseMode
from tests.support.simulated.simulated_job import Scenario, SimulatedJob

ENGINES = 4


class LateEngine(FakeEngine):
    """Resumes `seconds` after it was told to."""

    seconds = 0.0

    async def resume(self) -> None:
        await asyncio.sleep(self.seconds)
        await super().resume()


class Job(SimulatedJob):
    """Each engine resumes a bit later than the one before."""

    def make_engine(self, name: str, pool: str = "fast") -> FakeEngine:
        scenario = self.scenario
        engine = LateEngine(name, scenario.length_of, scenario.max_running, scenario.timing)
        engine.seconds = 0.002 * self.engines_made
        return engine


@pytest.mark.parametrize("in_flight", ["keep", "abort"])
@pytest.mark.parametrize("bound", [0, 1])
def test_what_a_new_version_lets_begin_is_spread_over_all_engines(in_flight: PauseMode, bound: int) -> None:
    scenario = Scenario(
        steps=6, max_staleness=bound, in_flight=in_flight, engines=ENGINES, length_of=lambda request: 40,
        train_seconds=0.05,
    )  # fmt: skip
    job = Job(scenario).run()
    assert len(job.steps) == scenario.steps
    responses = scenario.groups_per_step * scenario.samples_per_prompt
    for step in range(scenario.steps):
        groups = job.trained[step * scenario.groups_per_step : (step + 1) * scenario.groups_per_step]
        used = Counter(sample.engine for group in groups for sample in group.samples)
        assert sorted(used.values()) == [responses // ENGINES] * ENGINES, f"step {step}"
