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

    phases: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))
    seconds: float = 0.0
    """Of the stays that tell their phases, as the driver saw them."""
    stays: int = 0
    preemptions: int = 0

    def add(self, seconds: float, phases: Mapping[str, float], preemptions: int) -> None:
        """Count a stay."""
        self.seconds += seconds
        self.stays += 1
        self.preemptions += preemptions
        for name, value in phases.items():
            self.phases[name] += value

    def share(self, phase: str) -> float:
        """Part of the time that the phase took."""
        return self.phases[phase] / self.seconds if self.seconds > 0 else 0.0

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
        self.spread = Sketch()
        """Seconds from a group's first complete response to its last."""

    def add_step(self, step: int, events: Iterable[Event]) -> None:
        """Take one step's events."""
        waiting, running, spread = [], [], []
        for event in events:
            if event.event == "generate":
                phases, preemptions = phases_of(event.extra)
                if phases:
                    for sums in (self.whole, self.by_pool[event.pool], self.by_step[step]):
                        sums.add(event.duration, phases, preemptions)
            elif event.event == "reward":
                extra = event.extra
                if "running" in extra:
                    waiting.append(float(extra.get("waiting", 0.0)))
                    running.append(float(extra["running"]))
                if "spread" in extra:
                    spread.append(float(extra["spread"]))
        self.reward_waiting.extend(waiting)
        self.reward_running.extend(running)
        self.spread.extend(spread)


def phases_of(extra: Mapping[str, Any]) -> tuple[dict[str, float], int]:
    """Seconds of each known phase in the `extra` of a `generate` event, and how often the request was
    pre-empted; none where it does not tell them."""
    told = extra.get("phases")
    if not isinstance(told, dict):
        return {}, 0
    seconds = {name: float(told[name]) for name in PHASES if isinstance(told.get(name), int | float)}
    return seconds, int(told.get("preemptions", 0))
