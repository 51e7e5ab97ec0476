"""Where engines take weights from: folders on this host, and the meeting point of a broadcast."""

import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.numpy import save_file

from rljob_runtime.weights.collective import CollectiveSender, Rendezvous
from rljob_runtime.weights.contents import check_same_model, tensor_shapes

MODEL = {"a.weight": (2, 3), "b.weight": (4,)}


def folder_with(path: Path, shapes: dict[str, tuple[int, ...]], file: str = "model.safetensors") -> Path:
    path.mkdir(exist_ok=True)
    save_file({name: np.zeros(shape, np.float32) for name, shape in shapes.items()}, path / file)
    return path


def test_shapes_come_in_order_of_names_from_all_files(tmp_path: Path) -> None:
    folder_with(tmp_path, {"c": (1,), "a": (2, 2)}, "model-00001.safetensors")
    folder_with(tmp_path, {"b": (3,)}, "model-00002.safetensors")
    assert list(tensor_shapes(tmp_path).items()) == [("a", (2, 2)), ("b", (3,)), ("c", (1,))]


def test_rotations_of_old_folders_are_no_weights(tmp_path: Path) -> None:
    rotations = ("model.layers.0.self_attn.rotary_emb.inv_freq", "model.rotary_emb.inv_freq")
    folder_with(tmp_path, MODEL | dict.fromkeys(rotations, (8,)))
    assert tensor_shapes(tmp_path) == MODEL


def test_a_folder_without_weights_is_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=f"{tmp_path}: no \\*.safetensors"):
        tensor_shapes(tmp_path)


def test_a_file_that_is_cut_short_is_named(tmp_path: Path) -> None:
    file = folder_with(tmp_path, MODEL) / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-4])
    with pytest.raises(ValueError, match=f"{file}: damaged"):
        tensor_shapes(tmp_path)


@pytest.mark.parametrize("found", [MODEL, MODEL | {"lm_head.weight": (4, 4)}])
def test_the_same_model_passes_with_or_without_its_tied_head(
    tmp_path: Path, found: dict[str, tuple[int, ...]]
) -> None:
    check_same_model(MODEL, folder_with(tmp_path, found))


@pytest.mark.parametrize(
    ("found", "message"),
    [
        ({"a.weight": (2, 3)}, "b.weight is missing"),
        ({"a.weight": (2, 3), "b.weight": (5,)}, r"b.weight has shape \[5\], this model's has \[4\]"),
        (MODEL | {"c.weight": (1,)}, "it has no c.weight"),
    ],
)
def test_another_model_is_refused(tmp_path: Path, found: dict[str, tuple[int, ...]], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        check_same_model(MODEL, folder_with(tmp_path, found))


def test_a_rendezvous_survives_its_text_form() -> None:
    meeting = Rendezvous("10.0.0.1", 4711, 9, 5)
    assert str(meeting) == "10.0.0.1:4711/9/5"
    assert Rendezvous.parse(str(meeting)) == meeting


@pytest.mark.parametrize("text", ["", "host/2/1", "host:x/2/1", "host:1/2", "host:1/2/0", "host:1/2/2"])
def test_a_malformed_rendezvous_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"host:port/world_size/rank_offset|rank_offset must be"):
        Rendezvous.parse(text)


class Recording(CollectiveSender):
    """A sender whose group is a list: what would be broadcast, in order."""

    def _device(self) -> None:
        pass

    def _join(self, host: str, port: int, world_size: int, device: None) -> list[torch.Tensor]:
        self.joined = (host, port, world_size)
        return []

    def _stream(self) -> str:
        return threading.current_thread().name

    def _broadcast(self, tensor: torch.Tensor, stream: str) -> None:
        assert tensor.is_contiguous()
        assert stream == "MainThread", "the stream is that of who computes the tensors"
        self._group.append(tensor)

    def _synchronize(self) -> None:
        self.sent = len(self._group)

    def _abort(self, group: list[torch.Tensor]) -> None:
        group.clear()


def tensors(shapes: dict[str, tuple[int, ...]]) -> Iterator[tuple[str, torch.Tensor]]:
    for name, shape in shapes.items():
        yield name, torch.zeros(shape[::-1]).permute(*reversed(range(len(shape))))


def test_a_sender_broadcasts_what_was_announced() -> None:
    sender = Recording()
    sender.init(3, "localhost:99")
    sender.send(1, tensors(MODEL), MODEL)
    assert (sender.joined, sender.sent) == (("localhost", 99, 3), 2)


@pytest.mark.parametrize(
    ("sent", "message"),
    [
        ({"a.weight": (2, 3)}, "version 7: b.weight was announced and not sent"),
        ({"b.weight": (4,)}, "version 7: got b.weight"),
        ({"a.weight": (3, 3)}, r"version 7: got a.weight \(3, 3\), announced \('a.weight', \(2, 3\)\)"),
        (MODEL | {"c.weight": (1,)}, "version 7: got c.weight .* announced None"),
    ],
)
def test_a_sender_refuses_what_was_not_announced(sent: dict[str, tuple[int, ...]], message: str) -> None:
    sender = Recording()
    sender.init(3, "localhost:99")
    with pytest.raises(ValueError, match=message):
        sender.send(7, tensors(sent), MODEL)


class Slow(Recording):
    """A sender whose buckets are sent when the test lets them."""

    def __init__(self) -> None:
        super().__init__()
        self.may_send = threading.Semaphore(0)
        self.order: list[str] = []

    def _broadcast(self, tensor: torch.Tensor, stream: str) -> None:
        assert self.may_send.acquire(timeout=20)
        self.order.append(f"sent {int(tensor)}")
        super()._broadcast(tensor, stream)


def test_buckets_are_packed_while_others_are_sent_and_never_over_one_that_is_not() -> None:
    """Bucket 1 is packed while bucket 0 waits; bucket 2, which has bucket 0's place, once that is sent."""
    sender = Slow()
    sender.init(2, "localhost:99")

    def buckets() -> Iterator[torch.Tensor]:
        for number in range(5):
            sender.order.append(f"packed {number}")
            if number:
                sender.may_send.release()
            yield torch.tensor(number)
        sender.may_send.release()

    sender._send_buckets(buckets())
    assert [each for each in sender.order if each.startswith("sent")] == [f"sent {n}" for n in range(5)]
    at = {each: place for place, each in enumerate(sender.order)}
    assert all(at[f"packed {n + 1}"] < at[f"sent {n}"] < at[f"packed {n + 2}"] for n in range(3))


def test_a_sender_must_be_in_a_group() -> None:
    with pytest.raises(RuntimeError, match="send before init"):
        Recording().send(0, tensors(MODEL), MODEL)
