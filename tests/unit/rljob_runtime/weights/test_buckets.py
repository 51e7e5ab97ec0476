"""Which tensors share a bucket, and where they lie in it."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from rljob_runtime.weights.buckets import Bucket, file_buckets, stored_tensors, wire_buckets
from rljob_runtime.weights.packing import packed

SHAPES = {"a": (3,), "b": (2, 2), "c": (40,), "d": (), "e": (1,)}


@pytest.mark.parametrize(
    ("limit", "buckets"),
    [
        (1000, [{"a": 0, "b": 16, "c": 32, "d": 192, "e": 208}]),
        (64, [{"a": 0, "b": 16}, {"c": 0}, {"d": 0, "e": 16}]),
        (20, [{"a": 0}, {"b": 0}, {"c": 0}, {"d": 0, "e": 16}]),
    ],
)
def test_a_bucket_has_as_many_tensors_as_fit(limit: int, buckets: list[dict[str, int]]) -> None:
    made = wire_buckets(SHAPES, "float32", limit)
    assert [{tensor.name: tensor.begin for tensor in bucket.tensors} for bucket in made] == buckets
    assert all(bucket.size == bucket.tensors[-1].begin + bucket.tensors[-1].size for bucket in made)


def test_nothing_makes_no_bucket() -> None:
    assert wire_buckets({}, "float32") == []
    assert list(packed([], {})) == []


@pytest.mark.parametrize("limit", [1, 40, 10_000])
def test_buckets_of_a_file_are_its_bytes(tmp_path: Path, limit: int) -> None:
    tensors = {name: torch.randn(shape) for name, shape in SHAPES.items()} | {"x": torch.arange(5)}
    save_file(tensors, file := tmp_path / "model.safetensors", metadata={"format": "pt"})
    content, found = file.read_bytes(), {}
    for bucket in file_buckets(file, limit):
        for tensor in bucket.tensors:
            begin = bucket.begin + tensor.begin
            dtype = getattr(torch, tensor.dtype)
            raw = torch.frombuffer(bytearray(content[begin : begin + tensor.size]), dtype=dtype)
            found[tensor.name] = raw.reshape(tensor.shape)
            assert tensor.begin + tensor.size <= bucket.size
    assert found.keys() == tensors.keys()
    assert all(torch.equal(found[name], tensors[name]) for name in tensors)


@pytest.mark.parametrize(
    "content",
    [b"", b"\0" * 8, (9).to_bytes(8, "little") + b"not JSON!", (2).to_bytes(8, "little") + b"[]"],
    ids=["empty", "no header", "no JSON", "no object"],
)
def test_a_damaged_file_is_refused(tmp_path: Path, content: bytes) -> None:
    (file := tmp_path / "model.safetensors").write_bytes(content)
    with pytest.raises(ValueError, match="damaged"):
        stored_tensors(file)


def test_a_file_that_is_cut_short_is_refused(tmp_path: Path) -> None:
    save_file({"a": torch.zeros(100)}, file := tmp_path / "model.safetensors")
    file.write_bytes(file.read_bytes()[:-4])
    with pytest.raises(ValueError, match="a does not lie in it whole"):
        file_buckets(file)


def test_tensors_are_packed_where_the_buckets_say(monkeypatch: pytest.MonkeyPatch) -> None:
    small: list[Bucket] = wire_buckets(SHAPES, "float32", 64)
    monkeypatch.setattr("rljob_runtime.weights.packing.wire_buckets", lambda *_: small)
    tensors = {name: torch.randn(shape) for name, shape in SHAPES.items()}
    # Copied: a buffer is used again two buckets later.
    runs = [run.clone() for run in packed(tensors.items(), SHAPES)]
    assert [len(run) for run in runs] == [bucket.size for bucket in small]
    for run, bucket in zip(runs, small, strict=True):
        for tensor in bucket.tensors:
            got = run[tensor.begin : tensor.begin + tensor.size].view(torch.float32)
            assert torch.equal(got.reshape(tensor.shape), tensors[tensor.name])


CORRECTION = "b.gate.e_score_correction_bias"
MIXED = {"a.gate.e_score_correction_bias": (5,), "b": (3,), CORRECTION: (3,), "c": (2, 2), "d": ()}


@pytest.mark.parametrize("limit", [1, 30, 1000])
def test_corrections_of_routers_keep_their_format_among_others(
    limit: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where one of them comes first."""
    made = wire_buckets(MIXED, "bfloat16", limit)
    placed = {tensor.name: tensor for bucket in made for tensor in bucket.tensors}
    assert list(placed) == list(MIXED)
    assert placed[CORRECTION].dtype == "float32" and placed["b"].dtype == "bfloat16"
    monkeypatch.setattr("rljob_runtime.weights.packing.wire_buckets", lambda *_: made)
    tensors = {
        name: torch.randn(shape).to(getattr(torch, placed[name].dtype)) for name, shape in MIXED.items()
    }
    runs = [run.clone() for run in packed(tensors.items(), MIXED)]
    assert [len(run) for run in runs] == [bucket.size for bucket in made]
    for run, bucket in zip(runs, made, strict=True):
        for tensor in bucket.tensors:
            got = run[tensor.begin : tensor.begin + tensor.size].view(getattr(torch, tensor.dtype))
            assert torch.equal(got.reshape(tensor.shape), tensors[tensor.name]), tensor.name


def test_packing_asks_for_the_buckets_of_the_common_format(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    monkeypatch.setattr(
        "rljob_runtime.weights.packing.wire_buckets",
        lambda shapes, dtype: asked.append(dtype) or wire_buckets(shapes, dtype),
    )
    tensors = {
        name: torch.zeros(shape, dtype=torch.float32 if "correction" in name else torch.bfloat16)
        for name, shape in MIXED.items()
    }
    assert len(list(packed(tensors.items(), MIXED))) == 1
    assert asked == ["bfloat16"]
