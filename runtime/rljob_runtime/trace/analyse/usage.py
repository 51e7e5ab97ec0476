"""How each worker's time was spent.

A worker's time is divided, without overlap and without a rest, into five kinds: `sync` (weight updates),
`work` (generating or training), `save` (checkpoints), `move` (fetching and handing on samples) and `idle`
(none of these). Where kinds overlap the first in that order counts: requests stay on an engine that stands
still for a weight update, and that time is not counted as generating.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from rljob_runtime.trace.analyse.cover import Cover
from rljob_runtime.trace.analyse.windows import Window
from rljob_runtime.trace.record.event_log import Event

KINDS = ("work", "sync", "save", "move", "idle")
"""Kinds of use, in the order in which they are shown."""

_KIND_OF = {
    "weight_publish": "sync", "weight_pause": "sync", "weight_load": "sync", "weight_resume": "sync",
    "generate": "work", "evaluate": "work", "forward": "work", "backward": "work", "optimizer": "work",
    "reference_forward": "work", "gather": "work",
    "checkpoint": "save",
    "prompt_fetch": "move", "get": "move", "put": "move", "weight_fetch": "move", "weight_stage": "move",
    "weight_write": "move", "weight_swap": "move",
    "share": "move", "reduce": "move",
}  # fmt: skip
_PRECEDENCE = ("sync", "work", "save", "move")
_COVERS = {event: _PRECEDENCE[_PRECEDENCE.index(kind) :] for event, kind in _KIND_OF.items()}
"""By event, the kinds whose covers it is part of: its own and those that come later in `_PRECEDENCE`. So the
time of a kind is what its cover has beyond the cover of the kind before it."""

_SIGNS = frozenset({"weight_load", "weight_swap", "optimizer"})
"""What all engines, and all ranks of the trainer, do again and again for as long as they are there."""

TRAINER_EVENTS = ("forward", "backward", "optimizer")


_NEVER = float("-inf"), float("-inf")


@dataclass
class WorkerUse:
    """One worker over the whole run."""

    worker: str
    pool: str
    host: str = ""
    first: float = float("inf")
    """Start of its first event, seconds since the epoch."""
    last: float = float("-inf")
    """End of its last event."""
    signs: dict[str, tuple[float, float]] = field(default_factory=dict)
    """Of each kind of sign of life, when its last but one and its last began; infinitely early for none."""
    left: bool = False
    """Whether it went before the run's end: its time ends with its last event then."""
    recorded: set[str] = field(default_factory=set)
    """Names of the events that it recorded; they tell its role."""
    covers: dict[str, Cover] = field(default_factory=lambda: {kind: Cover() for kind in _PRECEDENCE})
    """For each kind, what it and the kinds before it cover."""

    def add(self, events: Iterable[Event]) -> None:
        """Count some of its events, best in order of their ends."""
        for event in events:
            start = event.start
            end = start + event.duration
            # A comparison, not `min`: this runs for every event of a run.
            if start < self.first:
                self.first = start
            if end > self.last:
                self.last = end
            if event.event in _SIGNS:
                before, newest = self.signs.get(event.event, _NEVER)
                self.signs[event.event] = max(before, min(start, newest)), max(start, newest)
            self.recorded.add(event.event)
            for kind in _COVERS.get(event.event, ()):
                self.covers[kind].add(start, end)

    def split(self, start: float, end: float) -> dict[str, float]:
        """Seconds of each kind within [start, end]; time before it came and after it left is not counted."""
        # A worker that came late was not idle before it came, nor is one idle that has left.
        start, end = max(start, self.first), min(end, self.last) if self.left else end
        if end <= start:
            return dict.fromkeys(KINDS, 0.0)
        seconds, covered = {}, 0.0
        for kind in _PRECEDENCE:
            cover = self.covers[kind].within(start, end)
            # Never negative: both are sums of many intervals, each rounded.
            seconds[kind], covered = max(0.0, cover - covered), cover
        seconds["idle"] = max(0.0, end - start - covered)
        return seconds

    def over(self, windows: Sequence[Window]) -> dict[str, float]:
        """Seconds of each kind within all of the windows."""
        seconds = dict.fromkeys(KINDS, 0.0)
        for window in windows:
            for kind, value in self.split(window.start, window.end).items():
                seconds[kind] += value
        return seconds


@dataclass(frozen=True)
class PoolUse:
    """A pool over the whole run."""

    pool: str
    role: str
    """"engine", "trainer" or "other"."""
    workers: list[WorkerUse]
    by_step: list[dict[str, float]]
    """For each window, the share of the pool's time by kind; all 0 where it did not exist."""
    overall: dict[str, float]
    """The same over all windows."""
    seconds: float
    """Time that its workers were there, summed over them, within the windows."""

    @property
    def at_end(self) -> int:
        """Workers that it has at the end: pools may be scaled, or lose workers for good."""
        return sum(not worker.left for worker in self.workers)


def kind_of(event: str) -> str | None:
    """What a worker's time in such an event counts as; None where it occupies no worker."""
    return "idle" if event == "idle" else _KIND_OF.get(event)


def role_of(events: set[str]) -> str:
    """What a worker that records such events is."""
    if "generate" in events:
        return "engine"
    return "trainer" if events.intersection(TRAINER_EVENTS) else "other"


def event_shares(split: Mapping[str, float], totals: Mapping[str, float]) -> dict[str, float]:
    """Each event's share of a worker's or a pool's time: `split` is that time by kind, `totals` the seconds
    of its events. Events of one kind divide the kind's share among them by their seconds, so that all shares
    together are at most those of `split`, however events overlap; "idle" is all time that is of no other
    kind, whether it was recorded as such or not. Events that occupy no worker, such as a group's stages on
    the driver, have no share."""
    by_kind = dict.fromkeys(KINDS, 0.0)
    for event, seconds in totals.items():
        if event in _KIND_OF:
            by_kind[_KIND_OF[event]] += seconds
    shares = {
        event: split[kind] * seconds / by_kind[kind] if by_kind[kind] else 0.0
        for event, seconds in totals.items()
        if (kind := _KIND_OF.get(event)) is not None
    }
    if "idle" in totals:
        shares["idle"] = split["idle"]
    return shares


def pool_uses(workers: Sequence[WorkerUse], windows: Sequence[Window]) -> list[PoolUse]:
    """Every pool's use of its time: trainers first, then engines, then the others. Tells the workers whether
    they have left."""
    _find_left(workers)
    pools: dict[str, list[WorkerUse]] = {}
    for worker in workers:
        pools.setdefault(worker.pool, []).append(worker)
    found = [_pool_use(pool, members, windows) for pool, members in pools.items()]
    order = {"trainer": 0, "engine": 1, "other": 2}
    return sorted(found, key=lambda use: (order[use.role], use.pool))


def _find_left(workers: Sequence[WorkerUse]) -> None:
    """A worker has left where others of its kind gave two signs of life after its last event: nothing records
    that a pool was made smaller, or that a lost worker was not replaced. After one sign it may be late."""
    latest = {
        sign: max((worker.signs.get(sign, _NEVER)[0] for worker in workers), default=_NEVER[0])
        for sign in _SIGNS
    }
    for worker in workers:
        worker.left = any(worker.last < latest[sign] for sign in worker.signs)


def _pool_use(pool: str, members: list[WorkerUse], windows: Sequence[Window]) -> PoolUse:
    role = role_of(set().union(*(member.recorded for member in members)))
    totals = dict.fromkeys(KINDS, 0.0)
    by_step = []
    for window in windows:
        seconds = dict.fromkeys(KINDS, 0.0)
        for member in members:
            for kind, value in member.split(window.start, window.end).items():
                seconds[kind] += value
                totals[kind] += value
        by_step.append(_shares(seconds))
    return PoolUse(pool, role, members, by_step, _shares(totals), sum(totals.values()))


def _shares(seconds: dict[str, float]) -> dict[str, float]:
    total = sum(seconds.values())
    return {kind: value / total if total > 0 else 0.0 for kind, value in seconds.items()}
