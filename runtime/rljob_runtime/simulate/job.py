"""An asynchronous job: groups are admitted by the staleness bound, trained by deadline, and each new version
of the weights is published, delivered, and stops the engines for a moment.

Staleness control is the runtime's own (`groups.staleness`). A step's trainer waits for its batch, trains, and
publishes a version; engines generate meanwhile, with the version before until they have loaded this one, and
groups are admitted by what they have. One version is under way at a time. Pure.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rljob_runtime.groups.staleness import Bound, StalenessController
from rljob_runtime.routing.requests import EngineShape
from rljob_runtime.simulate.agenda import Agenda, Happening
from rljob_runtime.simulate.batch import Stuck
from rljob_runtime.simulate.outcome import Outcome, outcome
from rljob_runtime.simulate.physics import Physics
from rljob_runtime.simulate.rollout import Rollout
from rljob_runtime.simulate.scheduler import Scheduler
from rljob_runtime.simulate.workload import Workload
from rljob_runtime.step_numbers import step_number


@dataclass(frozen=True)
class JobModel:
    """What a job is besides its engines and its responses. Times in seconds."""

    bound: Bound
    steps: int
    """Training steps, each of `bound.groups_per_step` groups."""
    trainer_seconds: float = 0.0
    """Of each step, whatever it trains."""
    trainer_seconds_per_token: float = 0.0
    """For each token, of prompts and responses, that a step trains."""
    publish_seconds: float = 0.0
    """The trainer stands still for so long after a step to publish a version of the weights."""
    delivery_seconds: float = 0.0
    """From then until engines begin to load it; they generate meanwhile."""
    sync_seconds: float = 0.0
    """All engines stand still for so long to load it."""
    trainer_sends: bool = True
    """Whether the trainer stands still until engines have loaded a version; False: it goes on once it has
    published one, and publishes the next when they have loaded that."""
    recompute_kv: bool = False
    """Whether the KV of what runs is computed again with the new weights."""
    capacity_groups: int | None = None
    """Places for groups that are generated or wait to be trained; None: as many as the bound admits."""

    def __post_init__(self) -> None:
        if self.steps < 1:
            raise ValueError(f"steps must be at least 1 (found {self.steps})")
        for name in (
            "trainer_seconds", "trainer_seconds_per_token", "publish_seconds", "delivery_seconds",
            "sync_seconds",
        ):  # fmt: skip
            if getattr(self, name) < 0:
                raise ValueError(f"{name} must be at least 0 (found {getattr(self, name):g})")


def simulate_job(
    workload: Workload,
    shapes: Sequence[EngineShape],
    physics: Physics,
    scheduler: Scheduler,
    model: JobModel,
    on_load: Callable[[], None] = lambda: None,
) -> Outcome:
    """Train `model.steps` steps on the workload's first groups. `on_load` is told when all engines begin to
    load weights. Raises `ValueError` for too few groups and
    for engines that cannot hold the requests, and `Stuck` where the scheduler leaves requests lying."""
    needed = model.steps * model.bound.groups_per_step
    if workload.groups < needed:
        raise ValueError(f"the workload must have at least {needed} groups (found {workload.groups})")
    return _Job(workload, shapes, physics, scheduler, model, on_load).run()


class _Job:
    def __init__(
        self,
        workload: Workload,
        shapes: Sequence[EngineShape],
        physics: Physics,
        scheduler: Scheduler,
        model: JobModel,
        on_load: Callable[[], None],
    ) -> None:
        self._workload, self._model, self._on_load = workload, model, on_load
        self._total = model.steps * model.bound.groups_per_step
        self._tokens = (workload.lengths.sum(axis=1) + workload.prompt_tokens * workload.samples).tolist()
        """Of each group, prompts included."""
        self._agenda = Agenda()
        self._controller = StalenessController(
            model.bound, self._total, capacity_groups=model.capacity_groups
        )
        self._rollout = Rollout(workload, shapes, physics, scheduler, self._agenda, self._controller.put)
        self._next = 0
        """Uid of the group that is dispatched next."""
        self._admitted: list[float] = []
        """When each group, in order of uids, might have been dispatched first; later ones may not yet."""
        self._version = 0
        """Of the engines' weights."""
        self._training = False
        """The trainer trains, publishes a version, or waits until it can."""
        self._under_way = False
        """A version is published, and engines have not loaded it."""
        self._held_up = False
        """The trainer waits for that before it publishes the next one."""
        self._trained = 0
        """Response tokens."""
        self._oldest = 0
        self._ends: list[float] = []

    def run(self) -> Outcome:
        self._turn()
        while len(self._ends) < self._model.steps:
            if not self._agenda.advance():
                raise Stuck(
                    f"step {step_number(len(self._ends))} has {self._controller.ready} of its groups, and "
                    "nothing runs"
                )
            self._turn()
        samples = self._total * self._workload.samples
        return outcome(self._rollout, self._ends[-1], samples, self._trained, tuple(self._ends), self._oldest)

    def _turn(self) -> None:
        """After anything happened: let everyone go on who can."""
        self._train()
        self._rollout.act()
        self._feed()
        self._rollout.cluster.begin()

    def _feed(self) -> None:
        """Dispatch all that may be, and let it be placed, until that makes room for no more."""
        admitted = self._next + self._controller.room(self._version)
        self._admitted += [self._agenda.now] * (admitted - len(self._admitted))
        first = -1
        while first < self._next:
            first = self._next
            while (
                self._next < self._total
                and self._controller.room(self._version) > 0
                and self._rollout.wants_group(self._controller.awaits_group(self._version))
            ):
                self._controller.dispatched(self._next, self._version)
                deadline = self._controller.deadline(self._next)
                self._rollout.dispatch(self._next, deadline, self._admitted[self._next])
                self._next += 1
            self._rollout.act()

    def _train(self) -> None:
        step = len(self._ends)
        if self._training or step == self._model.steps:
            return
        uids = self._controller.select(step)
        if uids is None:
            return
        self._controller.taken(step, uids)
        version = self._model.bound.version_at(step)
        ages = [version - self._controller.dispatch_version(uid) for uid in uids]
        self._oldest = max(self._oldest, *ages)
        tokens = sum(self._tokens[uid] for uid in uids)
        seconds = self._model.trainer_seconds + self._model.trainer_seconds_per_token * tokens
        self._training = True
        self._after(seconds, lambda: self._stepped(uids))

    def _stepped(self, uids: tuple[int, ...]) -> None:
        self._controller.finished(uids)
        self._trained += sum(int(self._workload.lengths[uid].sum()) for uid in uids)
        self._ends.append(self._agenda.now)
        done = len(self._ends)
        if done == self._model.steps or done % self._model.bound.steps_per_version:
            self._training = False
        elif self._under_way:
            self._held_up = True
        else:
            self._publish()

    def _publish(self) -> None:
        self._after(self._model.publish_seconds, self._deliver)

    def _deliver(self) -> None:
        self._under_way = True
        self._training = self._model.trainer_sends
        self._after(self._model.delivery_seconds, self._load)

    def _load(self) -> None:
        self._on_load()
        self._rollout.cluster.load_weights(self._model.sync_seconds, self._model.recompute_kv)
        self._after(self._model.sync_seconds, self._loaded)

    def _loaded(self) -> None:
        self._version += 1
        self._under_way = False
        if self._held_up:
            self._held_up = False
            self._publish()
        elif self._model.trainer_sends:
            self._training = False

    def _after(self, seconds: float, happening: Happening) -> None:
        self._agenda.at(self._agenda.now + seconds, happening)
