"""The routing policies side by side on independent engines: the same lengths, the calibrated simulator.

8 engines like an H200 with an 8 B model (assumed constants), long-tailed lengths with a published mean. Each
policy is compared with least in flight on the same batch.

    python -m tests.bench.routing_simulated [SITE ...]
"""

import dataclasses
import statistics
from typing import Any

from rljob_runtime.simulate.workload import LengthModel
from tests.bench.figures import parser, record, take_names
from tests.bench.routing_sites import ALIKE, Site, over

SEEDS = range(10)
APART = LengthModel(7345, 32768, 0.6, 0.6, prompt_tokens=512)
"""Correlation 0.5."""
BASE = Site("512 prompts", lengths=ALIKE)
SITES = {
    site.name: site
    for site in (
        BASE,
        dataclasses.replace(BASE, name="512 prompts, limit 64", limit=64),
        dataclasses.replace(BASE, name="512 prompts, correlation 0.5", lengths=APART),
        dataclasses.replace(BASE, name="128 prompts", groups=128),
        dataclasses.replace(BASE, name="64 prompts, correlation 0.5", groups=64, lengths=APART),
    )
}
POLICIES: dict[str, tuple[dict[str, Any], int]] = {
    "adjacent": ({"adjacent": {}}, 0),
    "interleaved": ({"interleaved": {}}, 0),
    "adaptive": ({"adaptive": {}}, 0),
    "adaptive, 2 heavy": ({"adaptive": {}}, 2),
}
"""What `rollout.routing` says, and how many of the engines are the heavy pool."""
GOALS = {"512 prompts": "at least 1.05 x", "64 prompts, correlation 0.5": "at least 1.10 x"}
BASELINE: dict[str, Any] = {"leastInFlight": {}}


def main() -> None:
    """All sites, or those that are named; figures of the others are kept."""
    line = parser(__doc__)
    take_names(line, SITES, "SITE")
    options = line.parse_args()
    for name in options.names or SITES:
        site = SITES[name]
        base = [site.run(BASELINE, seed) for seed in SEEDS]
        figures = [over(f"{name}, least in flight: time", [each.wall for each in base], "s")]
        for policy, (routing, heavy) in POLICIES.items():
            ours = [site.run(routing, seed, heavy) for seed in SEEDS]
            ratios = [a.wall / b.wall for a, b in zip(base, ours, strict=True)]
            goal = GOALS.get(name) if policy == "adaptive" else None
            figures.append(over(f"{name}, {policy}: times as fast", ratios, "x", goal=goal))
            idle = [100 * each.idle for each in ours]
            before = statistics.mean(100 * each.idle for each in base)
            figures.append(over(f"{name}, {policy}: engines idle", idle, "%", baseline=before))
        record("routing_simulated", figures, options.out, keep=True)


if __name__ == "__main__":
    main()
