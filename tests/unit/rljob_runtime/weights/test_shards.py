"""Which file a tensor goes to."""

import json

import pytest

from rljob_runtime.weights.shards import index_of, plan_shards


@pytest.mark.parametrize(
    ("sizes", "shards"),
    [
        ([4, 3, 3], [["t0", "t1", "t2"]]),
        ([4, 6, 1], [["t0", "t1"], ["t2"]]),
        ([25], [["t0"]]),
        ([1, 25, 1], [["t0"], ["t1"], ["t2"]]),
        ([5, 5, 5, 5], [["t0", "t1"], ["t2", "t3"]]),
    ],
    ids=["one file", "a second", "a large one alone", "a large one between", "full files"],
)
def test_files_hold_ten_bytes(sizes: list[int], shards: list[list[str]]) -> None:
    planned = plan_shards({f"t{number}": size for number, size in enumerate(sizes)}, 10)
    assert list(planned.values()) == shards
    if len(shards) == 1:
        assert list(planned) == ["model.safetensors"]
    else:
        count = len(shards)
        assert list(planned) == [
            f"model-{number:05d}-of-{count:05d}.safetensors" for number in range(1, count + 1)
        ]


def test_the_index_names_the_file_of_each_tensor() -> None:
    index = json.loads(index_of({"a": ["x", "y"], "b": ["z"]}, 30))
    assert index == {"metadata": {"total_size": 30}, "weight_map": {"x": "a", "y": "a", "z": "b"}}
