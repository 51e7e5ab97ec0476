"""All simulated engines of a job, and the requests on them. Pure."""

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
from numpy.typing import NDArray

from rljob_runtime.routing.requests import EngineShape
from rljob_runtime.simulate.agenda import Agenda
from rljob_runtime.simulate.cohort import Cohort
from rljob_runtime.simulate.meter import Meter
from rljob_runtime.simulate.physics import Physics
from rljob_runtime.simulate.requests import Requests

Line = list[tuple[float, int]]
"""From when on, in seconds, an engine ran how many requests."""


class CacheTooSmall(ValueError):
    """An engine could never run a request of the workload."""

    def __init__(self, number: int, shape: EngineShape, needed: int) -> None:
        """`needed`: tokens of the longest prompt and response together."""
        super().__init__(
            f"engine {number}: kv_tokens must be at least {needed}, the longest prompt and response "
            f"together (found {shape.kv_tokens})"
        )
        self.pool = shape.pool
        self.needed = needed
        self.found = shape.kv_tokens


class Cluster:
    """Engines by number, from 0."""

    def __init__(
        self,
        shapes: Sequence[EngineShape],
        requests: Requests,
        agenda: Agenda,
        physics: Physics,
        ended: Callable[[int], None],
        left: Callable[[int], None],
    ) -> None:
        """`ended` is told of each request that is complete, `left` of each that was taken out before. Raises
        `ValueError` where an engine cannot hold the longest request, or where the engines of one lockstep
        pool differ in cost."""
        _check(shapes, requests, physics.lockstep)
        self._agenda, self._requests, self._left = agenda, requests, left
        self._cohorts: list[Cohort] = []
        self._meters: list[Meter] = []
        self._members = _members(shapes, physics.lockstep)
        """Numbers of the engines of each cohort."""
        self._places: dict[int, tuple[Cohort, int]] = {}
        """The cohort of each engine, and the engine's number in it."""
        self._homes: dict[int, Cohort] = {}
        """Where each request is that was placed and has not ended."""
        self._travelling: set[int] = set()
        """Requests whose KV is being copied to their engine."""
        self._recalled: set[int] = set()
        """Those of them that are to leave when they arrive."""
        self._due: dict[Cohort, None] = {}
        """Cohorts that stand between two steps and have something to do, in order."""
        for members in self._members:
            meter = Meter(len(members))
            cohort = Cohort(
                [shapes[number] for number in members], requests, agenda, physics, meter,
                ended, left, self._wake,
            )  # fmt: skip
            self._meters.append(meter)
            self._cohorts.append(cohort)
            self._places |= {number: (cohort, local) for local, number in enumerate(members)}

    def put(self, request: int, engine: int, copy_seconds: float = 0.0) -> None:
        """Run this request there, once its KV has been copied."""
        cohort, local = self._places[engine]
        self._homes[request] = cohort
        if copy_seconds <= 0:
            cohort.put(request, local)
            return
        self._travelling.add(request)
        self._agenda.at(self._agenda.now + copy_seconds, partial(self._arrive, request, local))

    def remove(self, request: int) -> None:
        """Take this request out of its engine; `left` is told when it is out, unless it ends before."""
        if request in self._travelling:
            self._recalled.add(request)
        else:
            self._homes[request].remove(request)

    def load_weights(self, seconds: float, recompute: bool) -> None:
        """All engines stand still; `recompute`: the KV of what they run is computed again."""
        for cohort in self._cohorts:
            cohort.stand_still(seconds, recompute)

    def begin(self) -> None:
        """Go on with the engines that stand between two steps; to be called when everything else of this
        moment has happened."""
        while self._due:
            cohort = next(iter(self._due))
            del self._due[cohort]
            cohort.begin()

    def progress(self) -> dict[int, int]:
        """Response tokens so far of each request that runs."""
        found: dict[int, int] = {}
        for cohort in self._cohorts:
            found |= cohort.progress()
        return found

    def settle(self) -> None:
        """Account for the time up to now; the simulation is over."""
        for cohort in self._cohorts:
            cohort.settle()

    def seconds(self, kind: str) -> NDArray[np.float64]:
        """A sum of `Meter` for each engine: busy, idle, loading or last_busy."""
        found = np.zeros(len(self._places))
        for members, meter in zip(self._members, self._meters, strict=True):
            found[members] = getattr(meter, kind)
        return found

    def lines(self) -> list[Line]:
        """What each engine ran over time."""
        found: list[Line] = [[] for _ in self._places]
        for members, meter in zip(self._members, self._meters, strict=True):
            for number, line in zip(members, meter.lines, strict=True):
                found[number] = line
        return found

    @property
    def pushed_out(self) -> int:
        """How often a request lost its place in a full KV cache."""
        return sum(meter.pushed_out for meter in self._meters)

    def _wake(self, cohort: Cohort) -> None:
        self._due[cohort] = None

    def _arrive(self, request: int, local: int) -> None:
        self._travelling.discard(request)
        if request in self._recalled:
            self._recalled.discard(request)
            # It arrives, and leaves at once: its KV is here and not where it goes.
            self._left(request)
            return
        self._requests.cached[request] = True
        self._homes[request].put(request, local)


def _members(shapes: Sequence[EngineShape], lockstep: bool) -> list[list[int]]:
    """Which engines share their steps."""
    if not lockstep:
        return [[number] for number in range(len(shapes))]
    pools: dict[str, list[int]] = {}
    for number, shape in enumerate(shapes):
        pools.setdefault(shape.pool, []).append(number)
    return list(pools.values())


def _check(shapes: Sequence[EngineShape], requests: Requests, lockstep: bool) -> None:
    if not shapes:
        raise ValueError("there must be at least one engine")
    longest = max(map(sum, zip(requests.lengths, requests.prompts, strict=True)))
    for number, shape in enumerate(shapes):
        if shape.limit < 1:
            raise ValueError(f"engine {number}: limit must be at least 1 (found {shape.limit})")
        if shape.kv_tokens is not None and shape.kv_tokens < longest:
            raise CacheTooSmall(number, shape, longest)
    for members in _members(shapes, lockstep):
        if len({shapes[number].cost for number in members}) > 1:
            pool = shapes[members[0]].pool
            raise ValueError(f"the engines of pool {pool} run in lockstep and must have one cost")
