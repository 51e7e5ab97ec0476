"""Where the time of starting went: of each worker, and of the whole job; pure."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from rljob_runtime.site.own_start import StartPart
from rljob_runtime.trace.analyse.cover import Cover
from rljob_runtime.trace.record.event_log import Event

PARTS = {
    "check": "the manifest is checked, from the begin of the command on",
    "ray": "what Ray's start took beyond the check beside it; in a cluster, its Ray is met",
    "model": "the initial model is made, or found",
    "process": "from the making of the worker's process to the begin of our code in it",
    "imports": "large packages are imported",
    "boot": "the process of vLLM's engine core begins, and imports vLLM, while its host does",
    "fetch": "the model comes from another machine",
    "join": "trainer ranks meet, and take their devices",
    "core": "vLLM's engine core: from asking for it until it is ready",
    "device": "vLLM takes its devices, and connects them",
    "load": "the model is loaded, in a trainer sharded too",
    "profile": "vLLM finds out how much memory there is for the KV cache, and compiles for that",
    "graphs": "vLLM captures graphs, and warms kernels up",
    "prepare": "optimizer, attention and plans of the trainer",
    "compile": "a pass of the trainer that changes nothing: its layers are compiled",
}
"""The parts of starts, in the order in which they are shown."""
IN_CORE = ("device", "load", "profile", "graphs")
"""What `core` consists of, where there is a `core`."""
BESIDE = "boot"
"""What takes place while other parts do."""
READY = "ready"
"""The driver's whole start, until training begins."""
LEAST = 0.05
"""Seconds. A part that took less, of all workers, is not told."""


@dataclass(frozen=True)
class WorkerStart:
    """One start of a worker."""

    worker: str
    pool: str
    parts: tuple[StartPart, ...]
    """One at least."""

    @property
    def end(self) -> float:
        return max(each.end for each in self.parts)

    @property
    def seconds(self) -> float:
        """From the begin of its first part to the end of its last."""
        return self.end - min(each.start for each in self.parts)

    @property
    def by_part(self) -> dict[str, float]:
        """Seconds of each part. Engines of one worker may start at once: what they do together counts
        once."""
        found = {}
        for name in PARTS:
            own = [each for each in self.parts if each.part == name]
            if own:
                found[name] = _covered(own)
        return found

    @property
    def between(self) -> float:
        """Seconds that are in no part."""
        return max(0.0, self.seconds - _covered(self.parts))


def _covered(parts: Iterable[StartPart]) -> float:
    """Seconds that are in one of `parts` at least."""
    cover = Cover()
    for each in parts:
        cover.add(each.start, each.end)
    return cover.within(float("-inf"), float("inf"))


@dataclass
class StartBook:
    """Takes all events, in order of steps, and keeps the newest start of each worker."""

    newest: dict[str, WorkerStart] = field(default_factory=dict)
    """By worker."""
    ready: str = ""
    """What was said when training began last; empty where that is not known."""
    _since: dict[str, float] = field(default_factory=dict)

    def add_step(self, events: Iterable[Event]) -> None:
        """Take one step's events."""
        for event in events:
            if event.event == "start":
                self._add(event)

    def _add(self, event: Event) -> None:
        part, since, worker = event.extra.get("part"), event.extra.get("since"), event.worker
        if not isinstance(part, str) or not isinstance(since, int | float):
            return
        if part == READY:
            self.ready = str(event.extra.get("words", ""))
            return
        before = self._since.get(worker, float("-inf"))
        if since < before:
            return
        # Another begin is another start, which takes the place of the one before.
        earlier = self.newest[worker].parts if since == before else ()
        own = StartPart(part, event.start, event.duration)
        self._since[worker] = since
        self.newest[worker] = WorkerStart(worker, event.pool, (*earlier, own))


def ready_sentence(seconds: float, starts: Sequence[WorkerStart]) -> str:
    """What a person is told when training begins, so many seconds after the command: who was the last to be
    ready, and where its time went; and how long the slowest of the others' kind took. Of each worker its
    newest start."""
    told = f"ready after {_number(seconds)} s"
    working = [each for each in starts if each.pool != "driver"]
    if not working:
        return told
    last = max(working, key=lambda each: each.end)
    name = last.worker if last.pool == "trainer" else f"engine {last.worker}"
    told += f": {name} was last ({_number(last.seconds)} s: {_parts(last.by_part)})"
    others = [each.seconds for each in working if (each.pool == "trainer") != (last.pool == "trainer")]
    if others:
        kind = "engines" if last.pool == "trainer" else "trainer"
        told += f", {kind} {_number(max(others))} s"
    return told


def _parts(seconds: dict[str, float]) -> str:
    """process 6.1, core 61, of which load 4.0, profile 32."""
    inner = IN_CORE if "core" in seconds else ()
    outside = [name for name in seconds if name not in inner]
    told = _named(seconds, outside)
    within = _named(seconds, inner)
    # The core is the last of an engine's parts.
    return f"{told}, of which {within}" if within else told


def _named(seconds: dict[str, float], names: Iterable[str]) -> str:
    return ", ".join(f"{name} {_number(seconds[name])}" for name in names if seconds.get(name, 0.0) >= LEAST)


def _number(seconds: float) -> str:
    return f"{seconds:.1f}" if seconds < 9.95 else f"{seconds:.0f}"
