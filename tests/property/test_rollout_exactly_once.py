"""Whatever happens to engines and weights, every prompt is trained once and within the bound."""

import asyncio
import random
from collections import Counter

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from rljob_runtime.data.forced_lengths import ForcedLengths
from rljob_runtime.groups.filter import GroupFilter
from rljob_runtime.groups.staleness import StalenessController
from rljob_runtime.samples import spans_cover
from tests.support.depth import examples
from tests.support.simulated.simulated_job import Scenario, SimulatedJob


def killer(seed: int, every: float):
    """Kills a random engine now and then."""

    def start(job: SimulatedJob) -> "asyncio.Task[None]":
        rng = random.Random(seed)

        async def kill() -> None:
            while True:
                await asyncio.sleep(rng.expovariate(1 / every))
                if len(job.pool.slots) > 1:
                    slot = rng.choice(job.pool.slots)
                    slot.engine.die("killed")
                    job.pool.lost(slot, "killed")

        return asyncio.create_task(kill())

    return start


def heavy_tail(request) -> int:
    """One response in eight is 40 times as long as the others."""
    return 400 if request.seed % 8 == 0 else 10


scenarios = st.builds(
    Scenario,
    steps=st.integers(1, 8),
    groups_per_step=st.integers(1, 6),
    samples_per_prompt=st.integers(1, 4),
    max_staleness=st.sampled_from([0, 0.2, 0.5, 1, 1.5, 2, 4]),
    steps_per_version=st.integers(1, 3),
    in_flight=st.sampled_from(["keep", "abort", "wait", None]),
    engines=st.integers(1, 3),
    max_running=st.integers(1, 16),
    length_of=st.sampled_from([heavy_tail, lambda request: request.seed % 60]),
    train_seconds=st.sampled_from([0.0, 0.1, 2.0]),
    faults=st.builds(killer, st.integers(0, 9), st.sampled_from([0.5, 3.0, 1e9])),
)


@settings(max_examples=examples(80), deadline=None)
@given(scenario=scenarios, partial_last=st.integers(0, 5), tight=st.booleans(), forced=st.booleans())
def test_every_prompt_is_trained_once_within_the_bound(scenario, partial_last, tight, forced):
    if forced:
        lengths = np.random.default_rng(0).integers(1, 60, (5, scenario.samples_per_prompt))
        scenario.forced = ForcedLengths(lengths)
    scenario.total_groups = max(1, scenario.steps * scenario.groups_per_step - partial_last)
    scenario.capacity_groups = scenario.groups_per_step if tight else None
    job = SimulatedJob(scenario).run()

    assert sorted(group.uid for group in job.trained) == list(range(scenario.total_groups))
    assert job.ledger.watermark == scenario.total_groups and not job.ledger.ahead
    for step in job.steps:
        assert step.staleness_max <= job.controller.bound.versions
    counts = job.rollouter.counts
    assert counts.dispatched == counts.accepted == scenario.total_groups
    assert (counts.open, counts.cancelled, counts.discarded) == (0, {}, {})
    for group in job.trained:
        for index, sample in enumerate(group.samples):
            if forced:
                assert (len(sample.tokens), sample.finish) == (lengths[group.uid % 5, index], "length")
            assert spans_cover(sample.spans, len(sample.tokens))
            versions = [span.version for span in sample.spans]
            assert versions == sorted(versions)
            assert all(version >= group.dispatch_version for version in versions)


@settings(max_examples=examples(60), deadline=None)
@given(scenario=scenarios, in_flight=st.sampled_from(["keep", "abort"]))
def test_with_masks_every_prompt_is_trained_once_and_every_trained_token_is_within_the_bound(
    scenario, in_flight
):
    scenario.masks, scenario.in_flight = True, in_flight
    scenario.controller = WatchedController
    job = SimulatedJob(scenario).run()

    total = scenario.steps * scenario.groups_per_step
    assert sorted(group.uid for group in job.trained) == list(range(total))
    assert max(step.trained_age_max for step in job.steps) <= job.controller.bound.versions
    assert job.controller.most_outstanding <= job.controller.bound.most_outstanding
    counts = job.rollouter.counts
    assert (counts.dispatched, counts.accepted, counts.open) == (total, total, 0)


@settings(max_examples=examples(80), deadline=None)
@given(
    scenario=scenarios,
    partial_last=st.integers(0, 5),
    refill=st.integers(1, 8),
    endless=st.booleans(),
    one_in=st.integers(1, 5),
    masks=st.booleans(),
    refusing=st.sampled_from(
        [
            GroupFilter(equal_rewards=True),
            GroupFilter(pass_rates=(0.0, 0.9)),
            GroupFilter(equal_rewards=True, pass_rates=(0.0, 0.6)),
        ]
    ),
)
def test_with_a_filter_every_prompt_is_trained_or_refused_once(
    scenario, partial_last, refill, endless, one_in, masks, refusing
):
    """`one_in`: how many prompts there are to one that gives different rewards. Such a group has a lower pass
    rate than others too."""
    scenario.filter = refusing
    total = max(1, scenario.steps * scenario.groups_per_step - partial_last)
    scenario.total_groups, scenario.refill, scenario.endless = total, refill, endless
    scenario.equal = lambda uid: uid % one_in != 0
    scenario.masks = masks and scenario.in_flight in ("keep", "abort")
    job = SimulatedJob(scenario).run()

    trained = {group.uid for group in job.trained}
    done = {uid for uid in range(job.ledger.end) if uid in job.ledger}
    refused = done - trained
    assert len(trained) == len(job.trained) == job.ledger.trained and trained <= done
    reasons = {uid: refusing.reason([(reward, None) for reward in scenario.rewards(uid)]) for uid in done}
    assert all(reasons[uid] is not None for uid in refused)
    if endless:
        assert len(trained) == total
    else:
        assert done == set(range(total))
    sizes = [len(step.uids) for step in job.steps]
    assert all(size == scenario.groups_per_step for size in sizes[:-1]) and sizes[-1] > 0
    assert len(refused) <= refill * (len(sizes) + 1)
    for step in job.steps:
        age = step.trained_age_max if scenario.masks else step.staleness_max
        assert age <= job.controller.bound.versions
    counts = job.rollouter.counts
    assert counts.refused == job.ledger.refused == len(refused)
    by_rate = sum(reasons[uid] == "pass_rate" for uid in refused)
    assert counts.refused_pass_rate == job.ledger.refused_pass_rate == by_rate
    assert (
        counts.equal_rewards == sum(scenario.equal(uid) for uid in trained)
        or scenario.samples_per_prompt == 1
    )
    assert (counts.accepted, counts.open) == (len(trained), 0)
    assert counts.dispatched == counts.accepted + counts.refused


@settings(max_examples=examples(100), deadline=None)
@given(
    scenario=scenarios,
    partial_last=st.integers(0, 5),
    quarter=st.booleans(),
    refill=st.none() | st.integers(1, 8),
    endless=st.booleans(),
    reward_seconds=st.sampled_from([0.0, 0.3]),
)
def test_with_over_sampling_every_prompt_is_trained_once_and_aborted_once_at_most(
    scenario, partial_last, quarter, refill, endless, reward_seconds
):
    scenario.reward_seconds = reward_seconds
    of_version = scenario.groups_per_step * scenario.steps_per_version
    scenario.surplus = max(1, of_version // 4) if quarter else 1
    scenario.total_groups = max(1, scenario.steps * scenario.groups_per_step - partial_last)
    scenario.refill, scenario.endless = refill, endless
    scenario.equal = lambda uid: uid % 3 != 0
    scenario.controller = FairController
    job = SimulatedJob(scenario).run()

    trained = {group.uid for group in job.trained}
    done = {uid for uid in range(job.ledger.end) if uid in job.ledger}
    assert len(trained) == len(job.trained) == job.ledger.trained
    if refill is None:
        assert done == trained == set(range(scenario.total_groups))
    elif endless:
        assert len(trained) == scenario.total_groups
    else:
        assert done == set(range(scenario.total_groups))
    assert max(step.staleness_max for step in job.steps) <= job.controller.bound.versions
    counts = job.rollouter.counts
    aborted = counts.cancelled.get("over-sampling", 0)
    assert counts.dispatched == counts.accepted + counts.refused + aborted and counts.open == 0
    assert (counts.accepted, counts.refused) == (len(trained), job.ledger.refused)
    assert job.controller.aborted.total() == aborted
    assert set(job.controller.aborted.values()) <= {1}, "no prompt is aborted twice"
    assert set(job.scored.values()) == {1}, "no group is aborted whose responses are complete"
    if refill is None:
        assert max(job.controller.of_deadline.values(), default=0) <= scenario.surplus
    assert set(job.controller.aborted) <= done, "each of them was begun again"


class FairController(StalenessController):
    """Looks whether prompts that were aborted go before all others when their time has come."""

    def __init__(self, *arguments) -> None:
        super().__init__(*arguments)
        self.aborted: Counter[int] = Counter()
        self.of_deadline: Counter[int] = Counter()
        """How many groups of each deadline were aborted."""
        self._due: dict[int, int] = {}
        """Prompts that wait, and the version from which on they go first."""
        self._running: set[int] = set()
        """Those of them whose requests have not ended."""

    def surplus(self) -> list[int]:
        deadlines = dict(self._deadlines)
        uids = super().surplus()
        for uid in uids:
            self.aborted[uid] += 1
            self.of_deadline[deadlines[uid]] += 1
            # The second version after that of the next step, at the latest.
            self._due[uid] = self.bound.version_at(self._step) + 2
            self._running.add(uid)
        return uids

    def ended(self, uid: int) -> None:
        super().ended(uid)
        self._running.remove(uid)

    def dispatched(self, uid: int, version: int) -> None:
        if uid in self._due:
            del self._due[uid]
        else:
            assert all(due > version or each in self._running for each, due in self._due.items())
        super().dispatched(uid, version)


class WatchedController(StalenessController):
    """Notes how many groups were ever outstanding."""

    most_outstanding = 0

    def dispatched(self, uid: int, version: int) -> None:
        super().dispatched(uid, version)
        self.most_outstanding = max(self.most_outstanding, self.outstanding)


@settings(max_examples=examples(20), deadline=None)
@given(scenario=scenarios)
def test_bound_zero_trains_every_sample_at_its_own_version(scenario):
    scenario.max_staleness = 0
    job = SimulatedJob(scenario).run()
    assert {step.staleness_max for step in job.steps} == {0}
