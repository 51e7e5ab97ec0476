"""What carries weights, by what a job asks for and where it runs."""

import pytest

from rljob_runtime.weights.transport import Transport, TransportError, Wanted, choose


@pytest.mark.parametrize(
    ("wanted", "accelerator", "pull", "one_machine", "other", "chosen"),
    [
        ("auto", "nvidia", False, True, {}, "nccl"),
        ("auto", "nvidia", True, True, {}, "shm"),
        ("auto", "cpu", False, True, {}, "shm"),
        ("auto", "ascend", False, True, {}, "shm"),
        ("auto", "nvidia", False, True, {"adapter": True}, "shm"),
        ("auto", "nvidia", False, True, {"shared": True}, "shm"),
        ("auto", "nvidia", False, False, {}, "nccl"),
        ("auto", "ascend", False, False, {}, "hccl"),
        ("auto", "cpu", False, False, {}, "tcp"),
        ("auto", "nvidia", True, False, {}, "tcp"),
        ("auto", "nvidia", False, False, {"adapter": True}, "tcp"),
        ("auto", "nvidia", False, False, {"shared": True}, "tcp"),
        ("tcp", "nvidia", False, True, {}, "tcp"),
        ("tcp", "nvidia", False, False, {}, "tcp"),
        ("tcp", "cpu", True, True, {}, "tcp"),
        ("nccl", "nvidia", False, True, {}, "nccl"),
        ("shm", "cpu", False, True, {}, "shm"),
    ],
)
def test_transports(
    wanted: Wanted,
    accelerator: str,
    pull: bool,
    one_machine: bool,
    other: dict[str, bool],
    chosen: Transport,
) -> None:
    assert choose(wanted, accelerator, pull, one_machine, **other) == chosen


def test_shared_memory_reaches_one_machine_only() -> None:
    with pytest.raises(TransportError, match="use auto in a cluster"):
        choose("shm", "cpu", False, one_machine=False)
