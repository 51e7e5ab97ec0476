"""What the routing benchmarks simulate: engines, batches, and the policies of an RLJob by name."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rljob_api import RLJob
from rljob_runtime.routing.choose import policy_of
from rljob_runtime.routing.cost import StepCost
from rljob_runtime.routing.policy import Policy
from rljob_runtime.routing.requests import EngineShape
from rljob_runtime.routing.router import Router
from rljob_runtime.simulate.batch import simulate_batch
from rljob_runtime.simulate.outcome import Outcome
from rljob_runtime.simulate.physics import Physics
from rljob_runtime.simulate.workload import LengthModel, Workload
from tests.bench.figures import Figure
from tests.support.jobs import job
from tests.support.simulated.routed import faster

VLLM_GRAPHS = (1, 2, 4, *range(8, 513, 8))
"""The batch sizes that vLLM captures by default."""
GPU = StepCost(0.008, 2e-5, 4.3e-8, 1 / 20000, VLLM_GRAPHS)
"""An 8 B model on an H200: assumed, and fitted to no measurement."""
PHYSICS = Physics(report_seconds=2.0)
ALIKE = LengthModel(7345, 32768, 0.6, 0.2, prompt_tokens=512)
"""Published mean and cap; responses to one prompt resemble each other: correlation 0.9."""


@dataclass(frozen=True)
class Site:
    """Engines, and a batch of responses."""

    name: str
    groups: int = 512
    samples: int = 16
    engines: int = 8
    limit: int = 256
    kv_tokens: int = 750_000
    lengths: LengthModel = ALIKE
    cost: StepCost = GPU
    physics: Physics = PHYSICS
    speed: float = 1.0
    """How many times as fast an engine of the heavy pool is."""
    heavy_limit: int | None = None
    """Requests that an engine of the heavy pool runs at a time; None: as many as the others."""

    def shapes(self, heavy: int = 0) -> list[EngineShape]:
        """The engines, the last `heavy` of them in the heavy pool."""
        cost = self.cost._replace(per_copied_token=self.physics.copied_token_seconds)
        fast = EngineShape("fast", self.limit, self.kv_tokens, cost, self.physics.lockstep)
        other = fast._replace(
            pool="heavy", limit=self.heavy_limit or self.limit, cost=faster(cost, self.speed)
        )
        return [fast] * (self.engines - heavy) + [other] * heavy

    def draw(self, seed: int) -> Workload:
        return self.lengths.draw(self.groups, self.samples, seed)

    def policy(self, routing: dict[str, Any], heavy: int = 0) -> Policy:
        """What `rollout.routing` asks for, in a job of this size."""
        changes = {
            "training.rollout.routing": routing,
            "training.rollout.samplesPerPrompt": self.samples,
            "training.rollout.maxResponseTokens": self.lengths.cap,
            "training.rollout.maxRunningRequests": self.limit,
            "training.schedule.promptsPerBatch": self.groups,
            "training.parallel.maxTokensPerMicroBatch": 2 * self.lengths.cap,
            "training.model.random.maxPositionEmbeddings": 2 * self.lengths.cap,
            "pools.fastRollout.replicas": self.engines - heavy,
            "pools.heavyRollout.replicas": heavy,
        }
        return policy_of(RLJob.model_validate(job(changes)).spec)

    def run(self, routing: dict[str, Any], seed: int, heavy: int = 0) -> Outcome:
        """One batch."""
        return self.run_on(self.draw(seed), routing, heavy)

    def run_on(self, work: Workload, routing: dict[str, Any], heavy: int = 0) -> Outcome:
        """The same of a batch that is given."""
        return simulate_batch(work, self.shapes(heavy), self.physics, Router(self.policy(routing, heavy)))


def over(figure: str, values: Sequence[float], unit: str, **more: Any) -> Figure:
    """A figure's mean over batches; the standard deviation stands with the unit."""
    count = len(values)
    return Figure(
        figure, statistics.mean(values), f"{unit} (± {statistics.stdev(values):.2g}, {count} batches)", **more
    )
