"""A buffer is used again when ZeroMQ says that a message is sent; what arrives is what was sent."""

from pathlib import Path

import pytest
import zmq

from rljob_runtime.engines.vllm_sending import copy_what_is_sent

LARGE, SMALL = 200_000, 300


class AsksAboutTheLastFrame:
    """As the engine core of vLLM 0.22."""


class AsksAboutTheFirstFrame:
    """As that of vLLM 0.32."""

    def _send_msg_tracking_payload(self) -> None: ...


@pytest.fixture(autouse=True)
def _as_before(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(zmq, "COPY_THRESHOLD", zmq.COPY_THRESHOLD)


def arrives(folder: Path) -> bytes:
    """Send a large frame and a small one to somebody who is not there yet, write over the large one when
    both are said to be sent, and receive it."""
    where = f"ipc://{folder}/socket"
    with zmq.Context() as context, context.socket(zmq.PUSH) as push, context.socket(zmq.PULL) as pull:
        push.linger = 0
        push.connect(where)
        buffer = bytearray(b"a" * LARGE)
        tracker = push.send_multipart([buffer, b"b" * SMALL], copy=False, track=True)
        assert tracker is not None and tracker.done
        buffer[:SMALL] = b"c" * SMALL
        pull.rcvtimeo = 10_000
        pull.bind(where)
        return pull.recv_multipart()[0]


def test_a_buffer_that_is_used_again_spoils_what_is_on_its_way(tmp_path: Path):
    assert arrives(tmp_path) == b"c" * SMALL + b"a" * (LARGE - SMALL)


def test_what_is_copied_is_not_spoilt(tmp_path: Path):
    assert copy_what_is_sent(AsksAboutTheLastFrame)
    assert arrives(tmp_path) == b"a" * LARGE


def test_nothing_is_copied_for_a_core_that_asks_about_the_right_frame():
    before = zmq.COPY_THRESHOLD
    assert not copy_what_is_sent(AsksAboutTheFirstFrame)
    assert before == zmq.COPY_THRESHOLD
