"""What the time of requests, rewards and groups was made of, as events tell it.

Pure. Guarantees: memory is bounded by the number of steps and of pools.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from rljob_runtime.trace.analyse.sketch import Sketch
from rljob_runtime.trace.record.event_log import Event

PHASES = ("queued", "prefill", "decode", "paused", "preempted", "recomputed")
"""Phases of a stay on an engine, in the order in which they are shown."""


@dataclass
class PhaseSums:
    """Seconds of stays on engines."""

    told: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))
    """Sums of what `phases` of the events say, by name: seconds, and `preemptions`."""
    seconds: float = 0.0
    """Of the stays that tell their phases, as the driver saw them."""
    stays: int = 0

    def add(self, other: "PhaseSums") -> None:
        """Count other stays too."""
        self.seconds += other.seconds
        self.stays += other.stays
        for name, value in other.told.items():
            self.told[name] += value

    def share(self, phase: str) -> float:
        """Part of the time that the phase took."""
        return self.told[phase] / self.seconds if self.seconds > 0 else 0.0

    @property
    def preemptions(self) -> int:
        return int(self.told["preemptions"])

    @property
    def rest(self) -> float:
        """Part of the time that was in no phase: the way between driver and engine."""
        return max(0.0, 1.0 - sum(self.share(phase) for phase in PHASES)) if self.seconds > 0 else 0.0


class PhaseBook:
    """Takes all events, in order of steps."""

    def __init__(self) -> None:
        self.whole = PhaseSums()
        self.by_pool: defaultdict[str, PhaseSums] = defaultdict(PhaseSums)
        self.by_step: defaultdict[int, PhaseSums] = defaultdict(PhaseSums)
        self.reward_waiting = Sketch()
        """Seconds in which a group's last response waited for a reward worker."""
        self.reward_running = Sketch()
        """Seconds that the reward function took for it."""
        self.teacher = Sketch()
        """Seconds until a served teacher had answered for all responses of a group."""
        self.spread = Sketch()
        """Seconds from a group's first complete response to its last."""

    def add_step(self, step: int, events: Iterable[Event]) -> None:
        """Take one step's events."""
        waiting, running, spread, teacher = [], [], [], []
        pools: defaultdict[str, PhaseSums] = defaultdict(PhaseSums)
        for event in events:
            # By hand, and summed once for each pool: this runs for every response of a run.
            if event.event == "generate":
                if told := told_phases(event.extra):
                    sums = pools[event.pool]
                    sums.seconds += event.duration
                    sums.stays += 1
                    for name, value in told.items():
                        sums.told[name] += value
            elif event.event == "reward":
                extra = event.extra
                if "running" in extra:
                    waiting.append(float(extra.get("waiting", 0.0)))
                    running.append(float(extra["running"]))
                if "teacher" in extra:
                    teacher.append(float(extra["teacher"]))
                if "spread" in extra:
                    spread.append(float(extra["spread"]))
        for pool, sums in pools.items():
            for book in (self.whole, self.by_pool[pool], self.by_step[step]):
                book.add(sums)
        self.reward_waiting.extend(waiting)
        self.reward_running.extend(running)
        self.teacher.extend(teacher)
        self.spread.extend(spread)


def told_phases(extra: Mapping[str, Any]) -> Mapping[str, float]:
    """`phases` in the `extra` of a `generate` event; empty where it has none, or what are no numbers."""
    told = extra.get("phases")
    if not isinstance(told, dict):
        return {}
    try:
        # One call for all values: it raises for what cannot be added.
        sum(told.values())
    except TypeError:
        return {}
    return told
