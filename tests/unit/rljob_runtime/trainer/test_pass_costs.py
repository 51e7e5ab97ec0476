"""What passes cost, learned from what ranks measured."""

from collections.abc import Collection
from typing import Any

import pytest
import torch
import torch.distributed as dist
import transformers

from rljob_runtime.parallel.cost_model import CostModel, ModelShape
from rljob_runtime.parallel.hdp_plan import Plan, PlannedBatch, plan_hybrid
from rljob_runtime.trainer.attention_choice import Heads
from rljob_runtime.trainer.pass_costs import (
    PassCosts,
    PassTime,
    PlannedUpdate,
    measured_by_all,
    pass_numbers,
    seconds_of_passes,
    shape_of,
)
from rljob_runtime.trainer.phases import Timed
from tests.support.runtime.families import IMAGES

PRIOR = CostModel(per_pass=0.001, per_token=1e-6, per_square=1e-12, shared_pass=(0.0, 0.001))
SLOW = CostModel(per_pass=0.01, per_token=1e-3, per_square=1e-7, shared_pass=(0.0, 0.05))


def B(first: int, degree: int, *samples: int) -> PlannedBatch:
    return PlannedBatch(first, degree, samples)


SHARED = Plan(((B(0, 2, 0), B(0, 2, 1), B(0, 1, 2)), (B(0, 2, 0), B(0, 2, 1), B(1, 1, 3))), 0.0)
"""Two ranks share two passes, and each has one of its own."""


COMPILE_SECONDS = 30.0


def times(*seconds: float, compiled: Collection[int] = ()) -> list[PassTime]:
    """Of passes; in those with the numbers `compiled` something was, for `COMPILE_SECONDS`."""
    return [PassTime(each, COMPILE_SECONDS * (number in compiled)) for number, each in enumerate(seconds)]


def seconds_by(model: CostModel, update: PlannedUpdate) -> list[float]:
    return [model.seconds(update.lengths_of(batch), batch.degree) for batch in update.plan.passes]


@pytest.mark.parametrize(
    ("plan", "numbers"),
    [
        (SHARED, [[0, 1, 2], [0, 1, 3]]),
        # Empty passes are alike, and stand in the order of their ranks all the same.
        (Plan(((B(0, 1), B(0, 1)), (B(1, 1, 0), B(1, 1))), 0.0), [[0, 1], [2, 3]]),
        (Plan(((), (B(1, 1, 0),)), 0.0), [[], [0]]),
        (Plan(((B(0, 2, 0),), (B(0, 2, 0),), ()), 0.0), [[0], [0], []]),
    ],
)
def test_where_the_passes_of_a_rank_stand_in_the_list_of_all(plan: Plan, numbers: list[list[int]]) -> None:
    assert pass_numbers(plan) == numbers
    for rank, found in enumerate(numbers):
        assert [plan.passes[number] for number in found] == list(plan.ranks[rank])


@pytest.mark.parametrize(
    ("in_step", "seconds", "imbalance"),
    [
        # Rank 0 works 3 + 2 + 1 s, rank 1 3 + 2 + 4 s; the mean is 7.5 s.
        (False, 9.0, 9.0 / 7.5),
        # Each of the three rows takes as long as its slower half: 3 + 2 + 4.
        (True, 9.0, 9.0 / 7.5),
    ],
)
def test_the_slowest_rank_against_the_mean(in_step: bool, seconds: float, imbalance: float) -> None:
    costs = PassCosts(PRIOR, 2, in_step)
    found = costs.learn([PlannedUpdate(SHARED, [8, 8, 8, 8])], [times(3.0, 2.0, 1.0, 4.0)])
    assert (found.seconds, found.expected_seconds, found.r_squared) == (seconds, None, None)
    assert found.imbalance == pytest.approx(imbalance)


def test_rows_of_ranks_in_step_take_as_long_as_their_slowest() -> None:
    plan = Plan(((B(0, 1, 0), B(0, 1, 1)), (B(1, 1, 2), B(1, 1, 3))), 0.0)
    update, rows = PlannedUpdate(plan, [8, 8, 8, 8]), times(4.0, 1.0, 1.0, 4.0)
    assert PassCosts(PRIOR, 1, True).learn([update], [rows]).seconds == 8.0
    assert PassCosts(PRIOR, 1, False).learn([update], [rows]).seconds == 5.0
    both = PassCosts(PRIOR, 1, False).learn([update, update], [rows, times(1.0, 1.0, 4.0, 4.0)])
    assert (both.seconds, both.imbalance) == (13.0, 13.0 / 10.0)


def test_the_model_becomes_that_of_the_device_and_says_how_well_it_fits() -> None:
    costs = PassCosts(PRIOR, 2, in_step=False)
    lengths = [4000, 1500, 900, 700, 500, 300, 200, 100] * 4
    for step in range(8):
        update = PlannedUpdate(plan_hybrid(lengths, 2, 2048, costs.model), lengths)
        measured = seconds_by(SLOW, update)
        # The first step is one of warming up.
        slower = 100 if step == 0 else 1
        metrics = costs.learn([update], [times(*(slower * each for each in measured))])
        if step == 0:
            assert (costs.model, metrics.r_squared) == (PRIOR, None)
    assert metrics.r_squared is not None and metrics.r_squared > 0.99
    assert metrics.expected_seconds == pytest.approx(metrics.seconds, rel=0.05)
    assert costs.model.seconds([1500]) == pytest.approx(SLOW.seconds([1500]), rel=0.1)


@pytest.mark.parametrize("in_step", [False, True])
def test_a_pass_in_which_something_was_compiled_tells_nothing_of_what_passes_cost(in_step: bool) -> None:
    """As where a degree is used for the first time: its passes would look too dear to be planned again."""
    lengths = [n for i in range(20) for n in (500 + 50 * i, 400 + 50 * i)]
    plan = Plan(tuple(tuple(B(r, 1, i) for i in range(r, 40, 2)) for r in (0, 1)), 0.0)
    true = [SLOW.seconds([length]) for length in (*lengths[::2], *lengths[1::2])]
    costs = PassCosts(PRIOR, 1, in_step)
    for _ in range(5):
        # Of the second rank's passes every second one; in step the first rank waits for it.
        compiled = range(20, 40, 2)
        measured = [
            each + COMPILE_SECONDS if number in compiled or (in_step and number + 20 in compiled) else each
            for number, each in enumerate(true)
        ]
        metrics = costs.learn([PlannedUpdate(plan, lengths)], [times(*measured, compiled=compiled)])
    assert metrics.r_squared is not None and metrics.r_squared > 0.99
    assert costs.model.seconds([1000]) == pytest.approx(SLOW.seconds([1000]), rel=0.1)
    # What the step took is told as it was.
    assert metrics.seconds > sum(true[20:]) + 10 * COMPILE_SECONDS - 1
    assert metrics.compile_seconds == 10 * COMPILE_SECONDS


def test_in_step_only_the_costliest_of_a_row_tells_its_cost() -> None:
    """The short pass of a row took as long as the long one: it waited in it."""
    costs = PassCosts(PRIOR, 1, in_step=True)
    lengths = [n for i in range(40) for n in (500 + 50 * i, 50)]
    plan = Plan(tuple(tuple(B(r, 1, i) for i in range(r, 80, 2)) for r in (0, 1)), 0.0)
    slow = [SLOW.seconds([lengths[i]]) for i in range(0, 80, 2)]
    for _ in range(2):
        metrics = costs.learn([PlannedUpdate(plan, lengths)], [times(*slow, *slow)])
    assert metrics.r_squared is not None and metrics.r_squared > 0.99
    assert costs.model.seconds([2000]) == pytest.approx(SLOW.seconds([2000]), rel=0.05)
    assert costs.model.seconds([50]) < 0.2 * SLOW.seconds([2000])


def test_a_step_in_which_nothing_was_trained() -> None:
    update = PlannedUpdate(Plan(((), ()), 0.0), [])
    metrics = PassCosts(PRIOR, 2, in_step=False).learn([update], [[]])
    assert (metrics.seconds, metrics.imbalance) == (0.0, 1.0)


def timed(*parts: tuple[str, float], compiled: bool = False, **extra: Any) -> list[Timed]:
    return [Timed(event, 0, seconds, extra, COMPILE_SECONDS * compiled) for event, seconds in parts]


def test_passes_are_forward_and_backward_parts_of_training() -> None:
    parts = [
        *timed(("forward", 9.0), why="proximal"),
        *timed(("reference_forward", 9.0), ("forward", 1.0), ("backward", 2.0), ("forward", 3.0)),
        *timed(("backward", 4.0), ("optimizer", 9.0), ("forward", 5.0), ("backward", 6.0)),
    ]
    assert seconds_of_passes(parts, [2, 0, 1], True, "none") == [times(3.0, 7.0), [], times(11.0)]


def test_waiting_for_all_gradients_is_not_part_of_the_last_pass() -> None:
    parts = timed(
        ("forward", 1.0), ("backward", 3.0), ("forward", 2.0), ("backward", 99.0),
        ("forward", 4.0), ("backward", 50.0),
    )  # fmt: skip
    # Elsewhere a backward part takes three times the forward one.
    assert seconds_of_passes(parts, [2, 1], False, "full") == [times(4.0, 8.0), times(16.0)]
    # Where there is no other: twice the forward part, and it once more where it is computed again.
    assert seconds_of_passes(parts[:2], [1], False, "none") == [times(3.0)]
    assert seconds_of_passes(parts[:2], [1], False, "full") == [times(4.0)]


def test_what_was_compiled_in_either_part_of_a_pass_is_no_measure_of_another() -> None:
    parts = [
        *timed(("forward", 1.0), ("backward", 3.0), ("forward", 2.0)),
        *timed(("backward", 60.0), compiled=True),
        *timed(("forward", 30.0), compiled=True),
        *timed(("backward", 4.0), ("forward", 4.0), ("backward", 50.0)),
    ]
    found = [times(4.0, 62.0, 34.0, 16.0, compiled=(1, 2))]
    assert seconds_of_passes(parts, [4], False, "none") == found


def test_a_pass_that_was_not_timed_is_an_error() -> None:
    with pytest.raises(ValueError, match="2 passes were run, and 1 forward and 1 backward timed"):
        seconds_of_passes(timed(("forward", 1.0), ("backward", 2.0)), [2], True, "none")


def test_of_ranks_that_share_a_pass_the_one_that_waited_least_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rank 0's part here, rank 1's by the reduction that two ranks would make."""
    monkeypatch.setattr(dist, "get_rank", lambda: 0)
    monkeypatch.setattr(dist, "get_world_size", lambda: 2)

    def reduce(tensor: Any, op: Any) -> None:
        assert op == dist.ReduceOp.MIN
        inf = float("inf")
        other = tensor.new_tensor([[2.5, 0], [7.0, -COMPILE_SECONDS], [inf, inf], [4.0, 0]])
        tensor.copy_(tensor.minimum(other))

    monkeypatch.setattr(dist, "all_reduce", reduce)
    update = PlannedUpdate(SHARED, [8, 8, 8, 8])
    # The fourth is an idle pass.
    found = measured_by_all([update], [times(3.0, 2.0, 1.0, 9.0, compiled=[0])])
    assert found == [times(2.5, 2.0, 1.0, 4.0, compiled=[0, 1])]


SEEING: dict[str, dict[str, Any]] = {"gemma3": IMAGES["vision_config"]}
"""Families that see images, too, with the sizes of what they have for that."""


def shape(family: str, tensor: int = 1, **changes: Any) -> ModelShape:
    """Of a model of two layers, 64 wide, that has no values; of the part that each of `tensor` ranks has."""
    sizes: dict[str, Any] = {
        "vocab_size": 100, "hidden_size": 64, "intermediate_size": 32, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "tie_word_embeddings": False,
    } | changes  # fmt: skip
    if family in SEEING:
        sizes = {"text_config": sizes, "vision_config": SEEING[family]}
    config = transformers.AutoConfig.for_model(family, **sizes)
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(config)
    return shape_of(model, Heads.of(model), tensor)


def test_a_rank_of_a_tensor_group_pays_for_its_part_of_layers() -> None:
    """But not for latencies alone: the ranks that share a pass wait for as many calls."""
    whole, part = shape("mistral"), shape("mistral", 2)
    assert part == ModelShape(2, whole.parameters // 2, whole.query_width // 2, whole.key_value_width // 2)


@pytest.mark.parametrize(
    ("family", "count", "width"),
    [("qwen3_moe", "num_experts", "moe_intermediate_size"), ("mixtral", "num_local_experts", "")],
)
def test_of_experts_a_token_costs_those_that_it_uses(family: str, count: str, width: str) -> None:
    """However many there are: only the router has a row for each. Keys and values have nothing to do with
    experts."""
    found = {
        experts: shape(family, num_experts_per_tok=2, **{count: experts}, **({width: 32} if width else {}))
        for experts in (4, 16)
    }
    more = found[16].parameters - found[4].parameters
    assert more == 2 * 64 * (16 - 4), "the routers of two layers"
    dense = shape("mistral")
    one, router = 3 * 64 * 32, 4 * 64
    more = 2 * (2 * one + router) - 2 * one
    assert found[4].parameters == pytest.approx(dense.parameters + more, abs=64), "but for norms of heads"
    assert {each.key_value_width for each in found.values()} == {dense.key_value_width} == {32}


@pytest.mark.parametrize(
    ("family", "count", "used"),
    [
        ("aria_text", "moe_num_experts", {"moe_topk": 2}),
        ("jetmoe", "num_local_experts", {"num_experts_per_tok": 2}),
        ("ernie4_5_moe", "moe_num_experts", {"moe_k": 2, "moe_layer_start_index": 0}),
        ("gpt_oss", "num_local_experts", {"num_experts_per_tok": 2}),
    ],
)
def test_experts_are_told_by_whatever_name_they_have(family: str, count: str, used: dict[str, int]) -> None:
    """Of a model, and of its tensors: with more experts it has more rows of routers alone."""
    few, many = (shape(family, **{count: each}, **used).parameters for each in (4, 16))
    assert 0 < many - few <= 2 * (64 + 1) * (16 - 4)


def test_what_a_model_has_for_images_costs_a_token_nothing() -> None:
    assert shape("gemma3") == shape("gemma3_text")


@pytest.mark.parametrize("tied", [True, False])
def test_an_output_head_costs_what_it_is_multiplied_with(tied: bool) -> None:
    """Also where its weights are those of the input embedding, which is looked up."""
    assert shape("mistral") == shape("mistral", tie_word_embeddings=tied)
