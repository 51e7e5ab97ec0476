"""Frames between the pool and its workers, and how many samples a worker is given."""

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rljob_runtime.rewards import RewardInput
from rljob_runtime.rewards.frames import FrameBuffer, Ready, Result, Task, frame, from_worker, to_worker
from rljob_runtime.rewards.load import Refusal
from rljob_runtime.rewards.process import describe_exit, window


def test_a_task_arrives_as_it_was() -> None:
    tokens = np.arange(5, dtype=np.int32)
    sent = Task(7, RewardInput("p", "r", None, tokens[:2], tokens, False))
    [body] = FrameBuffer().feed(frame(sent))
    got = to_worker.decode(body)
    assert (got.number, got.sample.prompt, got.sample.answer, got.sample.finished) == (7, "p", None, False)
    assert got.sample.response_tokens.dtype == np.int32
    assert got.sample.response_tokens.tolist() == [0, 1, 2, 3, 4]


@given(sizes=st.lists(st.integers(0, 300), max_size=8), cuts=st.lists(st.integers(1, 400), max_size=20))
def test_frames_survive_any_cut_of_the_stream(sizes: list[int], cuts: list[int]) -> None:
    sent = [Result(n, 0.5, "x" * size, 0.1) for n, size in enumerate(sizes)]
    stream = b"".join(frame(message) for message in sent)
    buffer, got = FrameBuffer(), []
    for cut in [*cuts, len(stream)]:
        got += buffer.feed(stream[:cut])
        stream = stream[cut:]
    assert [from_worker.decode(body) for body in got] == sent


@pytest.mark.parametrize(
    "body", [b"", b"\xc1", b"\x80", msgspec.msgpack.encode({"type": "task"}), b"\x81\xa4type"]
)
def test_other_bytes_are_refused(body: bytes) -> None:
    with pytest.raises(msgspec.DecodeError):
        from_worker.decode(body)


def test_an_impossible_length_is_refused() -> None:
    with pytest.raises(msgspec.DecodeError, match="frame of 4294967295 bytes"):
        FrameBuffer().feed(b"\xff\xff\xff\xff")


def test_ready_with_and_without_an_error() -> None:
    for message in (Ready(), Ready(Refusal("no module", 1, of_arguments=False, argument=None))):
        assert from_worker.decode(frame(message)[4:]) == message


@pytest.mark.parametrize(
    ("seconds", "samples"),
    [(None, 1), (0.0, 64), (1e-5, 64), (0.001, 20), (0.009, 2), (0.02, 1), (5.0, 1)],
)
def test_window(seconds: float | None, samples: int) -> None:
    assert window(seconds) == samples


@pytest.mark.parametrize(
    ("code", "text"), [(0, "exit code 0"), (3, "exit code 3"), (-9, "signal SIGKILL"), (-99, "signal 99")]
)
def test_exit_codes(code: int, text: str) -> None:
    assert describe_exit(code) == text
