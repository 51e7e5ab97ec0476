"""Ours against verl's fully asynchronous policy, rebuilt on the same simulated engines: same forced lengths,
same bound in steps, same time for training and for a weight update.

What verl 0.9.1 does, as read from its `experimental/fully_async_policy` and `workers/rollout/llm_server`:

- A request goes to the server with the fewest requests in flight when it is submitted, of all that are, and
  waits there if that server is full. There is one kind of server.
- Groups are begun while those begun since the last update, and those that were under way or queued then, are
  fewer than (1 + staleness_threshold) x the groups of a step, and while fewer than 16 for each server are
  under way.
- A weight update aborts every request. Each is submitted again, with its tokens, once the engines have the
  new weights and at the earliest a second later; its KV cache is computed anew. Here it may go to another
  server then (`clear_sticky_cache`), which favours verl: by itself it goes back to its own.
- A step trains the groups that came first out of the queue, however old.

"The same bound" is taken in three ways: ours' rule of selection is added to verl's policy (`waits`); ours has
the bound that verl's oldest group happened to keep (`kept`); ours masks stale tokens, so that no step waits
either (`masked`). At some sites ours has a bound as well that is so long that nothing waits (`longer`).

    python -m tests.bench.verl_fully_async [SITE ...] [--seeds 10] [--ways kept longer]
"""

import os
import statistics
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial

from rljob_runtime.groups.staleness import Bound, StalenessController
from rljob_runtime.routing.adaptive import Adaptive
from rljob_runtime.routing.fixed import Adjacent, Interleaved
from rljob_runtime.routing.policy import Policy
from rljob_runtime.routing.requests import Action, EngineShape, GroupRequest, Move, Place, RequestKey
from rljob_runtime.routing.router import Router
from rljob_runtime.simulate.agenda import Agenda
from rljob_runtime.simulate.job import JobModel, simulate_job
from rljob_runtime.simulate.rollout import Rollout
from rljob_runtime.simulate.workload import LengthModel, Workload
from tests.bench.figures import Figure, parser, record, take_names
from tests.bench.routing_simulated import APART
from tests.bench.routing_sites import ALIKE, GPU, PHYSICS, over

STEPS = 12
SKIPPED = 2
"""Steps that fill the pipeline and are not counted."""
GROUPS_PER_SERVER = 16
RETRY_SECONDS = 1.0
KV_TOKENS = 750_000


@dataclass(frozen=True)
class JobSite:
    """A job of one kind. Times in seconds."""

    lengths: LengthModel
    groups: int
    """Of a step."""
    samples: int = 16
    engines: int = 8
    limit: int = 256
    train: float = 60.0
    sync: float = 2.0
    longer: int | None = None
    """A bound with which nothing waits for a straggler."""

    def shapes(self, heavy: int = 0) -> list[EngineShape]:
        """Equal engines, the last `heavy` of them in the heavy pool."""
        pools = ["fast"] * (self.engines - heavy) + ["heavy"] * heavy
        return [EngineShape(pool, self.limit, KV_TOKENS, GPU) for pool in pools]

    def draw(self, seed: int) -> Workload:
        return self.lengths.draw(self.groups * STEPS, self.samples, seed)


SHORT = LengthModel(1500, 8192, 0.6, 0.8, prompt_tokens=512)
SITES = {
    "64 prompts, correlation 0.9": JobSite(ALIKE, 64, longer=7),
    "64 prompts, correlation 0.5": JobSite(APART, 64, longer=5),
    "16 prompts, 4 engines, correlation 0.5": JobSite(APART, 16, engines=4, train=30.0),
    "128 prompts of 1,500 tokens": JobSite(SHORT, 128, samples=8, train=20.0),
}
WAYS = ("waits", "kept", "masked", "longer")
"""How bounds are made the same; see the module."""


class Servers:
    """A scheduler: each request belongs to the server that had the fewest in flight when it came, and waits
    there for a place."""

    def __init__(self) -> None:
        self.shapes: list[EngineShape] = []
        self.queues: list[deque[RequestKey]] = []
        self.running: list[set[RequestKey]] = []
        self.home: dict[RequestKey, int] = {}
        self._aborted: list[RequestKey] = []
        self._aborting = self._paused = False

    def join(self, engine: int, shape: EngineShape) -> None:
        self.shapes.append(shape)
        self.queues.append(deque())
        self.running.append(set())

    def dispatch(self, group: GroupRequest, now: float) -> None:
        for sample in range(group.samples):
            self._submit(RequestKey(group.uid, sample))

    def progressed(self, tokens: Mapping[RequestKey, int], now: float) -> None:
        pass

    def interrupted(self, key: RequestKey, tokens: int, now: float) -> bool:
        self.running[self.home.pop(key)].discard(key)
        self._aborted.append(key)
        return False

    def finished(self, key: RequestKey, tokens: int, now: float) -> None:
        self.running[self.home.pop(key)].discard(key)

    def wants_group(self, awaited: bool = False) -> bool:
        return True

    def decide(self, now: float) -> Sequence[Action]:
        if self._aborting:
            self._aborting = False
            for queue in self.queues:
                self._aborted += queue
                queue.clear()
            return [Move(key, None) for running in self.running for key in sorted(running)]
        if self._paused:
            return []
        placed: list[Action] = []
        for engine, queue in enumerate(self.queues):
            while queue and len(self.running[engine]) < self.shapes[engine].limit:
                key = queue.popleft()
                self.running[engine].add(key)
                placed.append(Place(key, engine))
        return placed

    def abort_all(self) -> None:
        """Every request leaves its server."""
        self._aborting = self._paused = True

    def resume(self) -> None:
        """What was aborted is submitted again."""
        self._paused = False
        again, self._aborted = self._aborted, []
        for key in sorted(again):
            self._submit(key)

    def _submit(self, key: RequestKey) -> None:
        engine = min(
            range(len(self.shapes)), key=lambda number: len(self.running[number]) + len(self.queues[number])
        )
        self.queues[engine].append(key)
        self.home[key] = engine


class _Rollout(Rollout):
    """Asks its scheduler when somebody else has told it something."""

    def wake(self) -> None:
        self._stirred = True


class FullyAsync:
    """A job under that policy. `hard`: whether a step waits as ours does, so that no group is older than the
    bound."""

    def __init__(self, site: JobSite, seed: int, hard: bool, threshold: int = 1) -> None:
        work = site.draw(seed)
        self.site, self.hard = site, hard
        self.agenda, self.servers = Agenda(), Servers()
        self.controller = StalenessController(Bound(threshold, site.groups), site.groups * STEPS)
        self.most = (1 + threshold) * site.groups
        self.concurrent = min(GROUPS_PER_SERVER * site.engines, self.most)
        self.rollout = _Rollout(work, site.shapes(), PHYSICS, self.servers, self.agenda, self._ended)
        self.begun = self.active = self.counted = self.version = 0
        self.queue: deque[int] = deque()
        self.training = False
        self.steps: list[float] = []
        self.oldest = 0

    def run(self) -> "FullyAsync":
        self._turn()
        while len(self.steps) < STEPS:
            assert self.agenda.advance(), "requests wait, and nothing runs"
            self._turn()
        return self

    def _turn(self) -> None:
        self._train()
        self.rollout.act()
        total = self.site.groups * STEPS
        while self.begun < total and self.counted < self.most and self.active < self.concurrent:
            self.controller.dispatched(self.begun, self.version)
            self.rollout.dispatch(self.begun)
            self.begun, self.active, self.counted = self.begun + 1, self.active + 1, self.counted + 1
        self.rollout.act()
        self.rollout.cluster.begin()

    def _ended(self, uid: int) -> None:
        self.active -= 1
        self.queue.append(uid)
        self.controller.put(uid)

    def _train(self) -> None:
        if self.training or len(self.queue) < self.site.groups:
            return
        step = len(self.steps)
        uids = self.controller.select(step) if self.hard else tuple(list(self.queue)[: self.site.groups])
        if uids is None:
            return
        for uid in uids:
            self.queue.remove(uid)
        self.oldest = max(self.oldest, *(step - self.controller.dispatch_version(uid) for uid in uids))
        self.training = True
        self.agenda.at(self.agenda.now + self.site.train, lambda: self._stepped(uids))

    def _stepped(self, uids: Sequence[int]) -> None:
        self.controller.finished(uids)
        self.steps.append(self.agenda.now)
        self.servers.abort_all()
        self.rollout.wake()
        self.rollout.cluster.load_weights(self.site.sync, False)
        self.agenda.at(self.agenda.now + self.site.sync, self._loaded)
        self.agenda.at(self.agenda.now + max(self.site.sync, RETRY_SECONDS), self._resumed)

    def _loaded(self) -> None:
        self.version += 1
        self.training = False
        self.counted = self.active + len(self.queue)

    def _resumed(self) -> None:
        self.servers.resume()
        self.rollout.wake()


def rate(steps: Sequence[float], site: JobSite) -> float:
    """Samples per second, without the first steps."""
    return (STEPS - SKIPPED) * site.groups * site.samples / (steps[-1] - steps[SKIPPED - 1])


def verls(site: JobSite, hard: bool, seed: int) -> tuple[float, int]:
    """A job under verl's policy: samples per second, and the age of its oldest group in versions."""
    job = FullyAsync(site, seed, hard).run()
    return rate(job.steps, site), job.oldest


def ours(site: JobSite, policy: str, bound: Bound, seed: int) -> float:
    """Samples per second of a job of ours."""
    model, router = (
        JobModel(bound, STEPS, site.train, sync_seconds=site.sync),
        Router(POLICIES[policy](site, bound)),
    )
    return rate(simulate_job(site.draw(seed), site.shapes(), PHYSICS, router, model).steps, site)


POLICIES: dict[str, Callable[[JobSite, Bound], Policy]] = {
    "adjacent": lambda site, bound: Adjacent(site.groups),
    "interleaved": lambda site, bound: Interleaved(site.groups),
    "least in flight": lambda site, bound: Policy(),
    "adaptive": lambda site, bound: Adaptive(site.lengths.cap, waits=not bound.masks),
}


def beside(name: str, found: Sequence[float], base: Sequence[float], goal: str | None) -> list[Figure]:
    """Samples per second of ours, job by job, beside those of verl's policy."""
    ratios = [a / b for a, b in zip(found, base, strict=True)]
    return [
        over(name, found, "samples/s", baseline=statistics.mean(base), goal=goal),
        over(f"{name}: times verl's, job by job", ratios, "x"),
    ]


def bounds(site: JobSite, ways: Collection[str], oldest: int) -> dict[str, Bound]:
    """Those of ours beside verl's policy as it is, of which no group was older than `oldest`."""
    found: dict[str, Bound] = {}
    if "kept" in ways:
        found[f"hard bound {oldest}"] = Bound(oldest, site.groups)
    if "masked" in ways:
        found["stale tokens masked, bound 1"] = Bound(1, site.groups, masks=True)
    if "longer" in ways and site.longer is not None:
        found[f"hard bound {site.longer}"] = Bound(site.longer, site.groups)
    return found


def measure(name: str, seeds: range, ways: Collection[str], pool: ProcessPoolExecutor) -> list[Figure]:
    """The figures of a site, over jobs of these seeds."""
    site = SITES[name]
    figures: list[Figure] = []
    for hard in (True, False):
        if not any((way == "waits") == hard for way in ways):
            continue
        rates, ages = zip(*pool.map(partial(verls, site, hard), seeds), strict=True)
        oldest = max(ages)
        what = "that waits by ours' rule, bound 1" if hard else "as it is"
        figures.append(over(f"{name}, verl's policy {what}", rates, "samples/s"))
        figures.append(Figure(f"{name}, verl's policy {what}: oldest group", oldest, "versions"))
        kinds = {"hard bound 1": Bound(1, site.groups)} if hard else bounds(site, ways, oldest)
        found = {
            (kind, policy): pool.map(partial(ours, site, policy, bound), seeds)
            for kind, bound in kinds.items()
            for policy in POLICIES
        }
        for (kind, policy), each in found.items():
            title = f"{name}, ours, {kind}, {policy}, beside verl's policy {what}"
            goal = "at least 1.15 x" if policy == "adaptive" else None
            figures += beside(title, list(each), rates, goal)
    return figures


def main() -> None:
    line = parser(__doc__)
    take_names(line, SITES, "SITE")
    line.add_argument("--seeds", type=int, default=10, help="jobs of each kind, of twelve steps")
    line.add_argument(
        "--ways", nargs="+", choices=WAYS, default=WAYS, help="how bounds are made the same; default: all"
    )
    options = line.parse_args()
    with ProcessPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        for name in options.names or SITES:
            # Figures of the others are kept.
            figures = measure(name, range(options.seeds), options.ways, pool)
            record("verl_fully_async", figures, options.out, keep=True)


if __name__ == "__main__":
    main()
