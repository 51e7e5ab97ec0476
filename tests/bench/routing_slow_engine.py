"""What routing is worth where one engine of a pool is slower than the others, as one that has its GPU
together with the trainer: the real loops in virtual time, fake engines.

64 prompts of 8 responses a step, lengths lognormal (median 220, at most 1,024, p99 eight times the median),
training 2.3 s. An ordinary engine takes 4.5 ms for a step and 8 us more for each request that runs: what was
measured of Qwen3-0.6B's shape on an H200. Nothing tells routing which engine is slow; it measures it. The
baseline is least in flight, in the same run.

    python -m tests.bench.routing_slow_engine
"""

from collections.abc import Callable

import numpy as np

from rljob_runtime.engines.fake import FakeTiming
from rljob_runtime.engines.protocol import Request
from rljob_runtime.routing.adaptive import Adaptive
from rljob_runtime.routing.fixed import Adjacent, Interleaved
from rljob_runtime.routing.policy import Policy
from tests.bench.figures import Figure, parser, record
from tests.support.simulated.simulated_job import Scenario, SimulatedJob

CAP, GROUPS, STEPS, SKIPPED = 1024, 64, 24, 6
POLICIES: dict[str, Callable[[], Policy]] = {
    "adjacent": lambda: Adjacent(GROUPS),
    "interleaved": lambda: Interleaved(GROUPS),
    "adaptive": lambda: Adaptive(CAP, groups_per_step=GROUPS),
}
SITES = {
    "two engines alike": (1.0, 1.0),
    "one of two 1.4 times as slow": (1.0, 1.4),
    "one of two 1.8 times as slow": (1.0, 1.8),
    "one of four twice as slow": (1.0, 1.0, 1.0, 2.0),
}


def length_of(request: Request) -> int:
    """Of a response, in tokens."""
    random = np.random.default_rng(request.seed)
    return int(np.clip(220 * np.exp(0.9 * random.standard_normal()), 16, CAP))


def step_seconds(slowness: tuple[float, ...], bound: int, policy: Callable[[], Policy]) -> float:
    """Of a step, after the first ones: with bound 1 steps come in pairs, with bound 2 in threes."""
    scenario = Scenario(
        steps=STEPS, groups_per_step=GROUPS, samples_per_prompt=8, max_staleness=bound,
        engines=len(slowness), slowness=slowness, policy=policy, max_running=512, length_of=length_of,
        max_response_tokens=CAP, train_seconds=2.3, timing=FakeTiming(0.0045, 8e-6, 5e-6, 0.05),
    )  # fmt: skip
    ended = [step.ended for step in SimulatedJob(scenario).run().steps]
    return (ended[-1] - ended[SKIPPED - 1]) / (STEPS - SKIPPED)


def main() -> None:
    out = parser(__doc__).parse_args().out
    shown = []
    for site, slowness in SITES.items():
        for bound in (1, 2):
            base = GROUPS * 8 / step_seconds(slowness, bound, Policy)
            for name, policy in POLICIES.items():
                rate = GROUPS * 8 / step_seconds(slowness, bound, policy)
                goal = ">= 0.99 x" if name == "adaptive" else None
                shown.append(Figure(f"{site}, bound {bound}: {name}", rate, "samples/s", base, goal))
    record("routing_slow_engine", shown, out)


if __name__ == "__main__":
    main()
