"""A second set of weights: what arrives, where it goes, and when the model changes."""

import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from rljob_runtime.engines.second_set import Layout, Region, SecondSet, View
from rljob_runtime.engines.staging_room import largest_bucket, no_room, second_set_bytes
from rljob_runtime.weights.buckets import Placed, wire_buckets
from rljob_runtime.weights.packing import packed

SECONDS = 20.0


class Model:
    """Two tensors: `fused` is q above k, of which this rank has the first two columns, with a last row that
    pads; `norm` as it is. A version also has experts that are another rank's."""

    def __init__(self) -> None:
        self.fused = torch.full((5, 2), -1.0)
        self.norm = torch.full((3,), -1.0)
        rows = View(0, (2, 2), (4, 1))
        self.layout = Layout(
            [self.fused, self.norm],
            {
                "q": [Region(rows, 0, View(0, (2, 2), (2, 1)))],
                "k": [Region(rows, 0, View(4, (2, 2), (2, 1)))],
                "norm": [Region(View(0, (3,), (1,)), 1, View(0, (3,), (1,)))],
                "expert": [],
            },
        )

    def check(self, version: dict[str, torch.Tensor]) -> None:
        """It has the weights of `version`."""
        pads = torch.full((1, 2), -1.0)
        assert torch.equal(self.fused, torch.cat([version["q"][:, :2], version["k"][:, :2], pads]))
        assert torch.equal(self.norm, version["norm"])

    def check_untouched(self) -> None:
        assert bool((self.fused == -1).all() and (self.norm == -1).all())


def version(seed: int) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    shapes = {"q": (2, 4), "k": (2, 4), "norm": (3,), "expert": (2, 2)}
    return {name: torch.randn(shape, generator=generator) for name, shape in sorted(shapes.items())}


def folder(path: Path, tensors: dict[str, torch.Tensor]) -> Path:
    path.mkdir()
    save_file(tensors, path / "model.safetensors")
    return path


def bring(second: SecondSet, number: int, work: Callable[[], None]) -> str:
    """Have something arrive; why it did not."""
    told: list[str] = []
    done = threading.Event()
    second.start(number, work, lambda why: (told.append(why), done.set())[0])
    assert done.wait(SECONDS)
    return told[0]


def test_the_model_changes_when_a_version_is_placed(tmp_path: Path) -> None:
    model = Model()
    second = SecondSet(model.layout, 1024)
    for number in (1, 2):
        where = folder(tmp_path / str(number), version(number))
        before = (model.fused.clone(), model.norm.clone())
        assert bring(second, number, lambda where=where: second.from_folder(where)) == ""
        assert torch.equal(model.fused, before[0]) and torch.equal(model.norm, before[1])
        second.place(number)
        model.check(version(number))


def test_a_newer_version_takes_the_place_of_one_that_was_not_placed(tmp_path: Path) -> None:
    model = Model()
    second = SecondSet(model.layout, 1024)
    for number in (1, 2):
        where = folder(tmp_path / str(number), version(number))
        assert bring(second, number, lambda where=where: second.from_folder(where)) == ""
    with pytest.raises(RuntimeError, match="version 1 of the second set is not there, but 2"):
        second.place(1)
    model.check_untouched()
    second.place(2)
    model.check(version(2))
    with pytest.raises(RuntimeError, match="not there"):
        second.place(2)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda tensors: tensors.pop("k"), "k is missing"),
        (lambda tensors: tensors.update(other=torch.zeros(1)), "the model has no other"),
        (lambda tensors: tensors.update(norm=torch.zeros(400)), "bucket"),
        (lambda tensors: tensors.update({"lm_head.weight": torch.zeros(4)}), ""),
    ],
    ids=["missing", "unknown", "too large", "a tied head"],
)
def test_what_does_not_fit_changes_nothing(
    tmp_path: Path, change: Callable[[dict[str, torch.Tensor]], Any], why: str
) -> None:
    model, tensors = Model(), version(1)
    change(tensors)
    second, where = SecondSet(model.layout, 256), folder(tmp_path / "v1", tensors)
    told = bring(second, 1, lambda: second.from_folder(where))
    assert why in told
    if why:
        with pytest.raises(RuntimeError, match="not there"):
            second.place(1)
    model.check_untouched()


def test_one_that_failed_leaves_room_for_the_next(tmp_path: Path) -> None:
    model = Model()
    second, where = SecondSet(model.layout, 1024), folder(tmp_path / "v2", version(2))
    half = folder(tmp_path / "v1", {"q": version(1)["q"]})
    assert "missing" in bring(second, 1, lambda: second.from_folder(half))
    assert bring(second, 2, lambda: second.from_folder(where)) == ""
    second.place(2)
    model.check(version(2))


def check(happened: bool) -> None:
    assert happened


def test_one_version_arrives_at_a_time() -> None:
    second, going = SecondSet(Model().layout, 64), threading.Event()
    second.start(1, lambda: check(going.wait(SECONDS)), lambda _: None)
    with pytest.raises(RuntimeError, match="still arriving"):
        second.start(2, lambda: None, lambda _: None)
    going.set()


@pytest.mark.parametrize("limits", [(16,), (48,), (1024,), (16, 16, 16), (16, 1024, 48, 16)])
def test_buckets_that_are_broadcast_arrive(limits: tuple[int, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    model = Model()
    second = SecondSet(model.layout, 1024)
    for number, limit in enumerate(limits):
        sent = version(number)
        shapes = {name: tuple(tensor.shape) for name, tensor in sent.items()}
        buckets = wire_buckets(shapes, "float32", limit)
        monkeypatch.setattr("rljob_runtime.weights.packing.wire_buckets", lambda *_, found=buckets: found)
        runs = iter([run.clone() for run in packed(sent.items(), shapes)])
        take = partial(second.receive, buckets, lambda into, _, runs=runs: into.copy_(next(runs)))
        assert bring(second, number, take) == ""
        second.place(number)
        model.check(sent)


@pytest.mark.parametrize(("needed", "available", "fits"), [(25, 100, True), (26, 100, False), (1, 0, False)])
def test_room_beside_the_kv_cache(needed: int, available: int, fits: bool) -> None:
    why = no_room(needed * 2**30, available * 2**30)
    assert (why is None) == fits
    assert why is None or "gpuMemoryUtilization" in why


@pytest.mark.parametrize(
    ("shapes", "limit", "expected"),
    [
        ({"a": (64,), "b": (64,)}, 128, 128),
        ({"a": (64,), "b": (64,)}, 1000, 256),
        ({"a": (64,), "b": (300,)}, 128, 600),
        # Sent, the second begins at a multiple of 16 bytes.
        ({"a": (3,), "b": (3,)}, 128, 22),
        ({"a": (64,), "b.e_score_correction_bias": (300,)}, 128, 1200),
    ],
)
def test_buckets_have_room_for_the_largest_that_comes(
    shapes: dict[str, tuple[int, ...]], limit: int, expected: int
) -> None:
    assert largest_bucket(wire_buckets(shapes, "bfloat16", limit), limit) == expected


def test_what_a_second_set_takes() -> None:
    assert second_set_bytes(1000, 128) == 1256
    assert Placed("a", "bfloat16", (3, 5), 0).size == 30
