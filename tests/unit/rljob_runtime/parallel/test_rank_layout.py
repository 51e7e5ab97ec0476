"""Which samples and which part of every layer a rank has, and which models can be split so."""

from typing import Any

import pytest

from rljob_runtime.parallel.rank_layout import Mesh, RankLayout, expert_count, unfit


@pytest.mark.parametrize(
    ("rank", "tensor", "data_rank", "data_ranks", "tensor_rank"),
    [(0, 1, 0, 8, 0), (5, 1, 5, 8, 0), (0, 2, 0, 4, 0), (5, 2, 2, 4, 1), (5, 4, 1, 2, 1), (7, 8, 0, 1, 7)],
)
def test_neighbours_have_the_same_samples(
    rank: int, tensor: int, data_rank: int, data_ranks: int, tensor_rank: int
) -> None:
    layout = RankLayout(rank, 8, tensor)
    assert (layout.data_rank, layout.data_ranks, layout.tensor_rank) == (data_rank, data_ranks, tensor_rank)
    assert layout.reports == (tensor_rank == 0)
    assert [layout.data_rank_of(each) for each in range(8)] == [each // tensor for each in range(8)]


def test_one_rank_of_each_group_reports() -> None:
    layouts = [RankLayout(rank, 12, 3) for rank in range(12)]
    assert [layout.data_rank for layout in layouts if layout.reports] == [0, 1, 2, 3]


@pytest.mark.parametrize(("rank", "ranks", "tensor"), [(0, 6, 4), (6, 6, 2), (-1, 6, 2), (0, 6, 0)])
def test_ranks_that_cannot_be(rank: int, ranks: int, tensor: int) -> None:
    with pytest.raises(ValueError, match=f"rank {rank} of {ranks} in tensor groups of {tensor}"):
        RankLayout(rank, ranks, tensor)


@pytest.mark.parametrize(
    ("ranks", "tensor", "group", "shape", "names", "of_state"),
    [
        (8, 1, None, (8,), ("shard",), ("shard",)),
        (8, 1, 8, (8,), ("shard",), ("shard",)),
        (8, 1, 4, (2, 4), ("replicate", "shard"), ("replicate", "shard")),
        (8, 1, 1, (8, 1), ("replicate", "shard"), ("replicate", "shard")),
        (8, 2, None, (4, 2), ("shard", "tensor"), ("shard",)),
        (8, 8, None, (1, 8), ("shard", "tensor"), ("shard",)),
        (8, 2, 4, (2, 2, 2), ("replicate", "shard", "tensor"), ("replicate", "shard")),
        (8, 2, 2, (4, 1, 2), ("replicate", "shard", "tensor"), ("replicate", "shard")),
    ],
)
def test_the_grid(
    ranks: int,
    tensor: int,
    group: int | None,
    shape: tuple[int, ...],
    names: tuple[str, ...],
    of_state: tuple[str, ...],
) -> None:
    mesh = RankLayout(0, ranks, tensor).mesh(group)
    assert mesh == Mesh(shape, names)
    assert mesh.of_state == of_state


@pytest.mark.parametrize(("tensor", "group"), [(1, 3), (2, 3), (4, 2)])
def test_copies_are_held_by_whole_groups(tensor: int, group: int) -> None:
    with pytest.raises(ValueError, match=f"{group} of 8 ranks hold a copy together"):
        RankLayout(0, 8, tensor).mesh(group)


@pytest.mark.parametrize(
    ("ranks", "tensor", "largest", "groups"),
    [
        (1, 1, 8, []),
        (4, 1, 1, []),
        (4, 1, 2, [(0, 1), (2, 3)]),
        (4, 1, 8, [(0, 1), (2, 3), (0, 1, 2, 3)]),
        (3, 1, 2, [(0, 1)]),
        (2, 2, 8, []),
        (4, 2, 8, [(0, 2), (1, 3)]),
        # Three data ranks, of which the last shares nothing.
        (6, 2, 8, [(0, 2), (1, 3)]),
        (6, 3, 2, [(0, 3), (1, 4), (2, 5)]),
        (8, 2, 2, [(0, 2), (1, 3), (4, 6), (5, 7)]),
        (8, 2, 4, [(0, 2), (1, 3), (4, 6), (5, 7), (0, 2, 4, 6), (1, 3, 5, 7)]),
    ],
)
def test_ranks_with_the_same_part_of_layers_share_samples(
    ranks: int, tensor: int, largest: int, groups: list[tuple[int, ...]]
) -> None:
    """Every rank makes all groups, in one order."""
    for rank in range(ranks):
        assert list(RankLayout(rank, ranks, tensor).sharing(largest)) == groups


MODEL: dict[str, Any] = {
    "num_attention_heads": 32, "num_key_value_heads": 8, "intermediate_size": 12288, "vocab_size": 151_936,
}  # fmt: skip


@pytest.mark.parametrize(
    ("tensor", "changes", "words"),
    [
        (1, {"num_experts": 128, "num_attention_heads": 7}, None),
        (2, {}, None),
        (8, {}, None),
        (8, {"num_experts": 0, "num_local_experts": None}, None),
        (2, {"num_key_value_heads": None}, None),
        (16, {}, ["tensorParallel is 16", "num_key_value_heads 8 (config.json)", "set one of 1, 2, 4, 8"]),
        (3, {}, ["num_attention_heads 32 and num_key_value_heads 8 (config.json)"]),
        (4, {"intermediate_size": 4866}, ["intermediate_size 4866", "set one of 1, 2"]),
        (8, {"num_experts": 128, "intermediate_size": 4866}, None),
        (3, {"num_experts": 0, "intermediate_size": 4866}, ["num_attention_heads 32"]),
        (8, {"num_local_experts": 60}, ["does not divide the model's num_local_experts 60", "1, 2, 4"]),
        (8, {"n_routed_experts": 4, "num_local_experts": None}, ["n_routed_experts 4", "1, 2, 4"]),
        (8, {"moe_num_experts": 6}, ["moe_num_experts 6", "set one of 1, 2"]),
        (2, {"num_attention_heads": 3}, ["num_attention_heads 3", "set one of 1"]),
    ],
)
def test_models_that_can_be_split(tensor: int, changes: dict[str, Any], words: list[str] | None) -> None:
    why = unfit(tensor, MODEL | changes)
    assert (why is None) == (words is None)
    for each in words or []:
        assert each in str(why)


@pytest.mark.parametrize(
    ("changes", "count"),
    [
        ({}, 0),
        ({"num_experts": 128}, 128),
        ({"num_experts": 0, "num_local_experts": 60}, 60),
        ({"num_experts": None, "n_routed_experts": 4}, 4),
        ({"moe_num_experts": 6}, 6),
        # Of layers that differ.
        ({"num_experts": [4, 8]}, 0),
    ],
)
def test_how_many_experts_a_layer_has(changes: dict[str, Any], count: int) -> None:
    assert expert_count(MODEL | changes) == count
