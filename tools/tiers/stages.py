"""The tiers of the tests, and which of them run at the same time."""

from dataclasses import dataclass, field, replace


@dataclass(frozen=True)
class Tier:
    """One part of the tests."""

    name: str
    target: str
    """The Makefile's target that runs it."""
    built: bool = False
    """It needs the programs and images of the local Kubernetes."""
    yields: bool = field(default=False, compare=False)
    """Other tiers of its stage have a core first."""


LINT = Tier("lint", "lint")
UNIT_RUNTIME = Tier("unit-runtime", "test-unit-runtime")
UNIT_ROLLOUT = Tier("unit-rollout", "test-unit-rollout")
"""Those of the runtime that need no torch: where responses are generated, on which engines, simulated."""
UNIT_OTHERS = Tier("unit-others", "test-unit-others")
"""Those of all other packages, which wait half of their time."""
PROPERTY = Tier("property", "test-property")
RUNTIME = Tier("runtime", "test-runtime")
CHART = Tier("chart", "test-chart", built=True)
IMAGES = Tier("images", "test-images", built=True)
APISERVER = Tier("apiserver", "test-apiserver", built=True)
NODE = Tier("node", "test-node", built=True)

Lane = tuple[Tier, ...]
"""Tiers that run one after the other."""
Stage = tuple[Lane, ...]
"""Lanes that run at the same time. The next stage begins when all of them have ended."""

FEW_EXAMPLES = "RLJOB_FEW_EXAMPLES"
"""The environment variable with which property tests try a third of their examples, as in `make check`."""


def yielding(*lane: Tier) -> Lane:
    """The lane, run in the time that the others of its stage leave."""
    return tuple(replace(tier, yields=True) for tier in lane)


CHECK: tuple[Stage, ...] = (((UNIT_RUNTIME,), (LINT, PROPERTY), (UNIT_ROLLOUT,), (UNIT_OTHERS,)),)
"""What needs nothing but Python. The last lane waits half of its time; the others keep two cores busy."""
ALL: tuple[Stage, ...] = (
    ((RUNTIME,), (IMAGES,)),
    ((APISERVER,),),
    ((NODE,), yielding(UNIT_RUNTIME, UNIT_OTHERS, CHART), yielding(LINT, UNIT_ROLLOUT, PROPERTY)),
)
"""The runtime's tests and the API server's each keep two cores busy: side by side they take as long as one
after the other, and API servers starve. Those of the images wait for answers of an index. Those on a node
wait for its pods half of their time, which is room for all that `make check` tells within minutes; it yields,
so that pods start as soon as they do on a machine of their own."""


def tiers(stages: tuple[Stage, ...]) -> list[Tier]:
    """All tiers, in the order in which their output is shown."""
    return [tier for stage in stages for lane in stage for tier in lane]
