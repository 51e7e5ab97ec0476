"""Simulated rollout: the scheduler decides, engines execute, and what became of each request is kept.

Guarantees: each response of each dispatched group ends exactly once; what the scheduler orders is carried
out, or refused with `ValueError` where no engine could. Pure.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

from rljob_runtime.routing.requests import Action, EngineShape, GroupRequest, Move, Place, RequestKey
from rljob_runtime.simulate.agenda import Agenda
from rljob_runtime.simulate.cluster import Cluster
from rljob_runtime.simulate.physics import Physics
from rljob_runtime.simulate.requests import Requests
from rljob_runtime.simulate.scheduler import Scheduler
from rljob_runtime.simulate.workload import ToolWaits, Workload

_SAME_REPORTS = 60
"""Reports that may tell the same, before they become ever rarer."""


@dataclass
class Tally:
    """What scheduling cost. Times in seconds, of engines and not of the job."""

    moves: int = 0
    """Requests taken out of one engine to go on elsewhere."""
    moved_tokens: int = 0
    """KV tokens that they had."""
    stall_seconds: float = 0.0
    """What it took to compute their KV again, or to copy it."""
    restarts: int = 0
    """Requests that began anew."""
    wasted_tokens: int = 0
    """Response tokens that were dropped by that."""
    response_seconds: list[float] = field(default_factory=list)
    """For each response: from its group's admission to its end."""
    group_seconds: list[float] = field(default_factory=list)
    """For each group: from its admission to the end of its last response."""


class Rollout:
    """See the module's guarantees."""

    def __init__(
        self,
        workload: Workload,
        shapes: Sequence[EngineShape],
        physics: Physics,
        scheduler: Scheduler,
        agenda: Agenda,
        on_group: Callable[[int], None],
    ) -> None:
        """`on_group` is told the uid of each group whose responses are all complete."""
        self.requests = Requests(workload)
        self.tally = Tally()
        self.cluster = Cluster(shapes, self.requests, agenda, physics, self._ended, self._left)
        self._workload, self._physics, self._agenda = workload, physics, agenda
        self._scheduler, self._on_group = scheduler, on_group
        self._costs = [shape.cost for shape in shapes]
        self._moving: set[int] = set()
        self._open: dict[int, int] = {}
        """Responses that each dispatched group lacks."""
        self._admitted: dict[int, float] = {}
        self._stirred = False
        """Whether the scheduler was told of anything since it last decided."""
        self._reported: dict[RequestKey, int] = {}
        self._same = 0
        """Reports in a row that told the same."""
        self._due = math.inf
        """When the next report comes."""
        for number, shape in enumerate(shapes):
            scheduler.join(number, _as_measured(shape, workload.waits))
        self._report_soon()

    def dispatch(self, uid: int, deadline: int = 0, admitted: float | None = None) -> None:
        """Begin a group, which may be trained up to the version `deadline`. `admitted`: when it might have
        been begun first, from which on its seconds count: a policy that begins groups late gains nothing by
        that. None: at this moment."""
        workload, now = self._workload, self._agenda.now
        self._open[uid] = workload.samples
        self._admitted[uid] = now if admitted is None else admitted
        group = GroupRequest(
            uid=uid,
            row=int(workload.rows[uid]),
            prompt_tokens=int(workload.prompt_tokens[uid]),
            samples=workload.samples,
            deadline=deadline,
        )
        self._scheduler.dispatch(group, now)
        self._stirred = True
        self._report_soon()

    def wants_group(self, awaited: bool) -> bool:
        """Whether another group is to be dispatched; see the router's."""
        return self._scheduler.wants_group(awaited)

    def act(self) -> None:
        """Carry out what the scheduler decides, until it decides nothing more."""
        while self._stirred:
            self._stirred = False
            for action in self._scheduler.decide(self._agenda.now):
                self._carry_out(action)

    def _carry_out(self, action: Action) -> None:
        number = self.requests.number(action.request)
        if isinstance(action, Place):
            self._place(number, action.engine)
        elif isinstance(action, Move):
            self._moving.add(number)
            self.cluster.remove(number)

    def _place(self, number: int, engine: int) -> None:
        requests, moved = self.requests, number in self._moving
        self._moving.discard(number)
        tokens = requests.tokens[number]
        copy = self._physics.copy(requests.kv(number)) if moved and tokens else None
        had_kv, requests.cached[number] = requests.cached[number], False
        if moved and tokens:
            self.tally.moves += 1
            self.tally.moved_tokens += requests.kv(number)
            again = requests.kv(number) * self._costs[engine].per_prefill_token
            self.tally.stall_seconds += copy if copy is not None and had_kv else again
        self.cluster.put(number, engine, copy if copy is not None and had_kv else 0.0)

    def _ended(self, number: int) -> None:
        self._moving.discard(number)
        key, now = self.requests.key(number), self._agenda.now
        self.tally.response_seconds.append(now - self._admitted[key.uid])
        self._scheduler.finished(key, self.requests.tokens[number], now)
        self._stirred = True
        self._open[key.uid] -= 1
        if self._open[key.uid] == 0:
            del self._open[key.uid]
            self.tally.group_seconds.append(now - self._admitted.pop(key.uid))
            self._on_group(key.uid)

    def _left(self, number: int) -> None:
        requests = self.requests
        tokens = requests.tokens[number]
        self._stirred = True
        if self._scheduler.interrupted(requests.key(number), tokens, self._agenda.now):
            self._moving.discard(number)
            self.tally.restarts += 1
            self.tally.wasted_tokens += tokens
            requests.tokens[number] = 0
            requests.cached[number] = False

    def _report_soon(self) -> None:
        """There is something to tell from now on."""
        seconds = self._physics.report_seconds
        if seconds is not None and self._due > self._agenda.now + seconds:
            self._report_at(self._agenda.now + seconds)

    def _report_at(self, due: float) -> None:
        self._due = due
        self._agenda.at(due, partial(self._report, due))

    def _report(self, due: float) -> None:
        if due != self._due:
            return
        self._due = math.inf
        requests = self.requests
        running = {requests.key(number): tokens for number, tokens in self.cluster.progress().items()}
        self._scheduler.progressed(running, self._agenda.now)
        self._stirred = True
        self._same = self._same + 1 if running == self._reported else 0
        self._reported = running
        assert self._physics.report_seconds is not None
        soon = self._agenda.now + self._physics.report_seconds
        # Where nothing else will happen, reports would go on for ever; where nothing is under way, there is
        # nothing to tell until something else has happened: a training step may take thousands of reports.
        if (other := self._agenda.next) is not None:
            until = max(soon, other)
            if self._open:
                until = max(soon, min(other, self._agenda.now + self._pause()))
            self._report_at(until)

    def _pause(self) -> float:
        """Seconds to the next report: in a pause of days, in which no response gets longer, ever more."""
        assert self._physics.report_seconds is not None
        return self._physics.report_seconds * 2.0 ** min(64, max(0, self._same - _SAME_REPORTS))


def _as_measured(shape: EngineShape, waits: ToolWaits | None) -> EngineShape:
    """An engine as its reports tell of it: of a response that waits for tools a token takes longer by its
    part of the wait, on whichever engine."""
    if waits is None:
        return shape
    cost = shape.cost
    return shape._replace(cost=cost._replace(fixed=cost.fixed + waits.seconds / waits.every_tokens))
