"""Attempts as a run records them, from simulated engines whose costs are known."""

from rljob_runtime.routing.cost import StepCost
from rljob_runtime.routing.requests import EngineShape, RequestKey
from rljob_runtime.simulate.batch import simulate_batch
from rljob_runtime.simulate.physics import Physics
from rljob_runtime.simulate.workload import LengthModel
from rljob_runtime.trace.forecast.engine_fit import Attempt
from tests.support.simulated.schedulers import InOrder


class _Recorder(InOrder):
    """Remembers when each request was placed, and where."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.begins: dict[RequestKey, tuple[int, float]] = {}

    def decide(self, now):  # type: ignore[no-untyped-def]
        self.now = now
        return super().decide(now)

    def place(self, key: RequestKey, engine: int):  # type: ignore[no-untyped-def]
        self.begins[key] = (engine, self.now)
        return super().place(key, engine)


def simulated_attempts(
    cost: StepCost, engines: int, groups: int, seed: int, admission: float = 0.0
) -> list[list[Attempt]]:
    """Of each engine; `admission`: seconds of a step with a prefill besides it."""
    model = LengthModel(mean=300, cap=2000, between=0.7, within=0.5, prompt_tokens=200)
    work = model.draw(groups, 4, seed)
    recorder, physics = _Recorder(), Physics(admission_seconds=admission)
    simulate_batch(work, [EngineShape("fast", 16, None, cost)] * engines, physics, recorder)
    found: list[list[Attempt]] = [[] for _ in range(engines)]
    for key, (engine, begin) in recorder.begins.items():
        tokens, end = recorder.finishes[key]
        found[engine].append(Attempt(begin, end, tokens, model.prompt_tokens))
    return found
