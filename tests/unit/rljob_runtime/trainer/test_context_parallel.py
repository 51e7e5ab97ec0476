from typing import Any

import numpy as np
import pytest

from rljob_api import RLJob
from rljob_api.context_parallel import ContextParallel
from rljob_runtime.job_errors import UnsupportedModel
from rljob_runtime.parallel.cost_model import CostModel
from rljob_runtime.parallel.micro_batches import Item, SampleTooLong
from rljob_runtime.parallel.rank_layout import RankLayout
from rljob_runtime.trainer.attention_choice import Heads
from rljob_runtime.trainer.context_parallel import Planner, alone, attention, planner
from rljob_runtime.trainer.pass_costs import PassCosts
from tests.support.jobs import job
from tests.support.shared_passes import check


def asked(**choice: Any) -> ContextParallel:
    return ContextParallel.model_validate(choice)


@pytest.mark.parametrize(
    ("choice", "ranks", "largest"),
    [
        ({"none": {}}, 8, 1),
        ({"fixed": {"degree": 4}}, 8, 4),
        ({"hybrid": {}}, 1, 1),
        ({"hybrid": {}}, 7, 4),
        ({"hybrid": {}}, 8, 8),
        ({"hybrid": {}}, 5000, 256),
        ({"hybrid": {"largestDegree": 4}}, 8, 4),
        ({"hybrid": {"largestDegree": 16}}, 12, 8),
    ],
)
def test_largest_degree(choice: dict[str, Any], ranks: int, largest: int) -> None:
    assert asked(**choice).largest_degree(ranks) == largest


@pytest.mark.parametrize(
    ("cap", "given", "mode"),
    [
        (24, None, "none"),
        (23, None, "hybrid"),
        (24, {"hybrid": {}}, "hybrid"),
        (23, {"fixed": {"degree": 2}}, "fixed"),
    ],
)
def test_default(cap: int, given: dict[str, Any] | None, mode: str) -> None:
    """The job's longest sample has 24 tokens."""
    changes = {"accelerator": "nvidia", "pools.trainer.acceleratorsPerWorker": 2}
    parallel = {"maxTokensPerMicroBatch": cap} | ({"contextParallel": given} if given else {})
    made = RLJob.model_validate(job(changes | {"training.parallel": parallel}))
    assert made.spec.context_parallel.chosen[0] == mode


HEADS = Heads(6, 2, 64)


def test_attention_that_a_model_does_not_allow() -> None:
    with pytest.raises(UnsupportedModel, match=r"attention heads \(6\) are divisible by .* \(up to 4\)"):
        attention(asked(hybrid={}, attention="ulysses"), 4, HEADS)


@pytest.mark.parametrize("kind", ["allGather", "ulysses"])
def test_attention_as_asked(kind: str) -> None:
    assert attention(asked(hybrid={}, attention=kind), 2, HEADS)(2) == kind


def test_attention_by_itself() -> None:
    of = attention(asked(hybrid={}), 8, Heads(32, 8, 128))
    assert [of(degree) for degree in (2, 4, 8)] == ["allGather", "ulysses", "ulysses"]


def test_attention_that_serves_a_teacher_too() -> None:
    of = attention(asked(hybrid={}), 8, Heads(32, 8, 128), [Heads(12, 4, 64)])
    assert [of(degree) for degree in (2, 4, 8)] == ["allGather", "ulysses", "allGather"]
    with pytest.raises(UnsupportedModel, match=r"attention heads \(12\) are divisible by"):
        attention(asked(hybrid={}, attention="ulysses"), 8, Heads(32, 8, 128), [Heads(12, 4, 64)])


def test_attention_of_the_heads_that_tensor_groups_leave_a_rank() -> None:
    """Four of 16, and two of eight of keys: eight ranks do not divide them."""
    of = attention(asked(hybrid={}), 8, Heads(16, 8, 64), tensor=4)
    assert [of(degree) for degree in (2, 4, 8)] == ["allGather", "ulysses", "allGather"]
    of = attention(asked(hybrid={}), 8, Heads(16, 8, 64), [Heads(8, 4, 64)], tensor=4)
    assert [of(degree) for degree in (2, 4)] == ["allGather", "allGather"]
    assert attention(asked(hybrid={}, attention="ulysses"), 4, Heads(16, 8, 64), tensor=4)(4) == "ulysses"
    words = r"attention heads \(16, by parallel.tensorParallel 4 on each rank\) are divisible by .* \(up to 8"
    with pytest.raises(UnsupportedModel, match=words):
        attention(asked(hybrid={}, attention="ulysses"), 8, Heads(16, 8, 64), tensor=4)


def test_ranks_that_wait_for_each_other_have_passes_of_like_cost() -> None:
    """All passes have four tokens; those with one sample take twice as long as those with two."""
    items = [Item(0, index, tokens) for index, tokens in enumerate([4, 2, 2, 4, 2, 2])]
    plan = alone(items, 4, 2, CostModel(per_pass=0.0, per_token=0.0, per_square=1.0), True)
    assert [[each.samples for each in rank] for rank in plan.ranks] == [[(0,), (1, 4)], [(3,), (2, 5)]]
    assert {(each.first, each.degree) for each in plan.passes} == {(0, 1), (1, 1)}


def test_ranks_that_wait_once_have_as_many_passes_as_they_need() -> None:
    """Six short samples take as long as the long one, in three passes; a rank without samples takes part in
    the reduction."""
    items = [Item(0, index, tokens) for index, tokens in enumerate([6, 2, 2, 2, 2, 2, 2])]
    cost = CostModel(per_pass=0.0, per_token=0.0, per_square=1.0)
    plan = alone(items[:1] + items[1:4] * 3, 6, 2, cost, False)
    assert [len(rank) for rank in plan.ranks] == [1, 3]
    plan = alone(items[:1], 6, 2, cost, False)
    assert [[each.samples for each in rank] for rank in plan.ranks] == [[(0,)], [()]]


CAP = 16
COST = CostModel(0.01, 0.001, 1e-4, (0.0, 0.002), (0.0, 1e-4))
ODD_WORLDS = {
    # ranks: the most that share a sample, and what they hold of it
    3: (2, 32),
    5: (4, 64),
    6: (4, 64),
    7: (4, 64),
}


def planner_of_a_job(data_ranks: int, tensor: int = 1) -> Planner:
    """Of one whose longest sample a single rank does not hold, with tensor groups of so many ranks."""
    changes = {
        "accelerator": "nvidia",
        "pools.trainer.acceleratorsPerWorker": data_ranks * tensor,
        "training.parallel": {"maxTokensPerMicroBatch": CAP, "tensorParallel": tensor},
    }
    spec = RLJob.model_validate(job(changes)).spec
    assert (spec.trainer_ranks, spec.data_ranks) == (data_ranks * tensor, data_ranks)
    layout = RankLayout(0, spec.trainer_ranks, tensor)
    largest = spec.context_parallel.largest_degree(layout.data_ranks)
    assert largest == ODD_WORLDS[data_ranks][0]
    costs = PassCosts(COST, largest, in_step=False)
    return planner(spec.context_parallel, spec.training.parallel.max_tokens_per_micro_batch, layout, costs)


@pytest.mark.parametrize("tensor", [1, 2])
@pytest.mark.parametrize("ranks", ODD_WORLDS)
def test_a_job_with_ranks_that_are_no_power_of_two(ranks: int, tensor: int) -> None:
    """The longest samples that fit, then fewer samples than ranks, then many of all lengths. Batches are
    split over tensor groups as over ranks."""
    plan, longest = planner_of_a_job(ranks, tensor), ODD_WORLDS[ranks][1]
    drawn = np.random.default_rng(ranks).integers(1, longest + 1, 40).tolist()
    for lengths in ([longest] * 3, [longest, 1], [1], drawn):
        made = plan([Item(0, index, tokens) for index, tokens in enumerate(lengths)])
        check(made, lengths, ranks, CAP)
    assert all(made.ranks), "with many samples no rank is idle, those beyond the largest group neither"


@pytest.mark.parametrize("ranks", ODD_WORLDS)
def test_a_sample_above_what_the_largest_group_holds(ranks: int) -> None:
    degree, longest = ODD_WORLDS[ranks]
    with pytest.raises(SampleTooLong, match=f"above the {longest} that {degree} of {ranks} ranks hold"):
        planner_of_a_job(ranks)([Item(0, 0, 1), Item(7, 1, longest + 1)])
    named = rf"above the {longest} that {degree} of {ranks} tensor groups of 2 ranks hold"
    with pytest.raises(SampleTooLong, match=named):
        planner_of_a_job(ranks, 2)([Item(7, 1, longest + 1)])
