"""What carries weights, by what a job asks for and where it runs."""

import pytest

from rljob_runtime.weights.transport import Transport, TransportError, Wanted, choose


@pytest.mark.parametrize(
    ("wanted", "accelerator", "pull", "one_machine", "adapter", "chosen"),
    [
        ("auto", "nvidia", False, True, False, "shm"),
        ("auto", "nvidia", False, True, True, "shm"),
        ("auto", "nvidia", False, False, False, "nccl"),
        ("auto", "ascend", False, False, False, "hccl"),
        ("auto", "cpu", False, False, False, "tcp"),
        ("auto", "nvidia", True, False, False, "tcp"),
        ("auto", "nvidia", False, False, True, "tcp"),
        ("tcp", "nvidia", False, True, False, "tcp"),
        ("nccl", "nvidia", False, True, False, "nccl"),
    ],
)
def test_transports(
    wanted: Wanted, accelerator: str, pull: bool, one_machine: bool, adapter: bool, chosen: Transport
) -> None:
    assert choose(wanted, accelerator, pull, one_machine, adapter) == chosen


def test_shared_memory_reaches_one_machine_only() -> None:
    with pytest.raises(TransportError, match="use auto in a cluster"):
        choose("shm", "cpu", False, one_machine=False)
