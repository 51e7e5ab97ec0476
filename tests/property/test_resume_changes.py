"""However a job is changed between a stop and a resume, each prompt is trained or refused once, within the
bound."""

import random

from hypothesis import given, settings
from hypothesis import strategies as st

from rljob_api import RLJob
from rljob_runtime.driver.job_settings import JobSettings
from rljob_runtime.driver.resume import beyond, with_fitting_groups
from rljob_runtime.groups.ledger import Ledger
from rljob_runtime.groups.state import JobState
from rljob_runtime.samples import decode_group
from tests.support.depth import examples
from tests.support.runtime.resumes import asked, frame, plan_from, saved


class Leg:
    """A run from a checkpoint to a stop or the end: staleness control with groups that end in any order."""

    def __init__(self, state: JobState, plan: JobSettings, rng: random.Random) -> None:
        state = with_fitting_groups(state, plan)
        self.plan = plan
        self.step = state.step
        self.ledger = state.ledger.copy()
        self.sizes: list[int] = []
        self._rng = rng
        self._controller = plan.controller(self.ledger)
        self._versions = {group.uid: group.dispatch_version for group in map(decode_group, state.waiting)}
        for uid, version in self._versions.items():
            self._controller.dispatched(uid, version)
            self._controller.put(uid)
        self._open: list[int] = []
        self._todo = self.ledger.remaining(plan.uids, set(self._versions))

    @property
    def done(self) -> bool:
        """Whether the job is at its end."""
        return self._controller.done

    def run(self, steps: int) -> JobState:
        """Train at most so many steps; what a checkpoint then holds."""
        while not self.done and len(self.sizes) < steps:
            self._train(self._batch())
        waiting = [
            frame(uid, version, self.plan.rollout.samples_per_prompt)
            for uid, version in self._versions.items()
            if uid not in self._open
        ]
        return saved(self.step, self.ledger, waiting, self.plan.bound.steps_per_version)

    def _batch(self) -> tuple[int, ...]:
        bound = self.plan.bound
        version = bound.version_at(self.step)
        lagging = self._rng.random() < 0.3
        while True:
            self._dispatch(max(0, version - lagging))
            assert len(self._versions) <= self.plan.capacity_groups
            if (uids := self._controller.select(self.step)) is not None:
                return uids
            assert self._open or lagging, "nothing is under way, and no batch comes"
            lagging = lagging and bool(self._open)
            if self._open:
                self._complete(self._open.pop(self._rng.randrange(len(self._open))))

    def _complete(self, uid: int) -> None:
        """Half of the groups have equal rewards."""
        if self._rng.random() < 0.5 and self._controller.refuse(uid):
            self.ledger.refuse(uid, "equal_rewards")
            del self._versions[uid]
        else:
            self._controller.put(uid)

    def _dispatch(self, version: int) -> None:
        while self._controller.room(version) > 0 and (uid := next(self._todo, None)) is not None:
            self._controller.dispatched(uid, version)
            self._versions[uid] = version
            self._open.append(uid)

    def _train(self, uids: tuple[int, ...]) -> None:
        bound = self.plan.bound
        for uid in uids:
            assert bound.version_at(self.step) - self._versions.pop(uid) <= bound.versions
        self._controller.finished(uids)
        self.ledger.record(uids)
        self.sizes.append(len(uids))
        self.step += 1


@st.composite
def changed(draw: st.DrawFn) -> RLJob:
    """A job with some schedule and bounds."""
    size, samples = draw(st.integers(1, 7)), draw(st.integers(1, 2))
    batches = draw(st.integers(1, 2))
    length = draw(st.sampled_from([{"epochs": 1}, {"epochs": 2}, {"totalSteps": 6}, {"totalSteps": 20}]))
    places = draw(st.none() | st.integers(0, 9))
    fields = {} if places is None else {"queueCapacity": (size * batches + places) * samples}
    return asked(
        {**length, "promptsPerBatch": size, "batchesPerStep": batches},
        samples,
        draw(st.none() | st.integers(1, 3)) if samples > 1 else None,
        maxStaleness=draw(st.sampled_from([0, 0.2, 0.5, 1, 1.5, 2, 4])),
        stepsPerVersion=draw(st.sampled_from([1, 1, 2, 3])),
        **fields,
    )


@settings(max_examples=examples(100), deadline=None)
@given(
    jobs=st.lists(st.tuples(changed(), st.integers(0, 6)), min_size=1, max_size=5),
    rows=st.integers(1, 25),
    seed=st.integers(0, 99),
)
def test_changes_between_runs(jobs: list[tuple[RLJob, int]], rows: int, seed: int) -> None:
    rng, state = random.Random(seed), saved(0, Ledger(), [])
    last = asked({"epochs": 50, "promptsPerBatch": 4}, maxStaleness=1)
    for wanted, steps in [*jobs, (last, 10**6)]:
        schedule = wanted.spec.training.schedule
        if beyond(state, schedule, rows) is not None:
            continue
        leg = Leg(state, plan_from(state, wanted, rows), rng)
        assert schedule.total_steps in (None, leg.plan.total_steps)
        state = leg.run(steps)
        full = leg.plan.bound.groups_per_step
        assert all(size == full for size in leg.sizes[:-1])
        if leg.done and schedule.epochs is not None:
            assert (state.ledger.watermark, state.ledger.ahead) == (schedule.epochs * rows, set())
        elif leg.sizes:
            assert leg.sizes[-1] == full
