"""Garbage collection and cores: what is changed, and that what is unknown changes nothing."""

import gc
import os
from pathlib import Path

import pytest

from rljob_runtime.trainer.host_tuning import bind_to_node, collection_paused, node_cores, parse_cores

ADDRESS = "0000:1B:00.0"


@pytest.mark.parametrize(
    ("text", "cores"),
    [("0-3,8,10-11\n", {0, 1, 2, 3, 8, 10, 11}), ("5\n", {5}), ("\n", set()), ("", set())],
)
def test_lists_of_cores(text: str, cores: set[int]) -> None:
    assert parse_cores(text) == cores


def machine(folder: Path, node: str, cores: str) -> Path:
    """Linux's folder of a machine with one device."""
    device = folder / "bus/pci/devices/0000:1b:00.0"
    device.mkdir(parents=True)
    (device / "numa_node").write_text(node)
    place = folder / "devices/system/node/node1"
    place.mkdir(parents=True)
    (place / "cpulist").write_text(cores)
    return folder


class Process:
    """The cores of this process, without changing them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, allowed: set[int]) -> None:
        self.cores = allowed
        monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(self.cores))
        monkeypatch.setattr(os, "sched_setaffinity", self._set)

    def _set(self, _: int, cores: set[int]) -> None:
        self.cores = cores


def test_a_process_keeps_to_its_devices_node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    process = Process(monkeypatch, set(range(2, 12)))
    told = bind_to_node(ADDRESS, machine(tmp_path, "1\n", "8-15\n"))
    assert process.cores == {8, 9, 10, 11}
    assert told == "4 of 10 cores, those of NUMA node 1"


@pytest.mark.parametrize(
    ("address", "node", "cores", "told"),
    [
        (None, "1", "0-3", "all cores: where the device is attached is not known"),
        (ADDRESS, "-1\n", "0-3", f"all cores: the NUMA node of {ADDRESS} is not known"),
        (ADDRESS, "none", "0-3", f"all cores: the NUMA node of {ADDRESS} is not known"),
        ("0000:ff:00.0", "1", "0-3", "all cores: the NUMA node of 0000:ff:00.0 is not known"),
        (ADDRESS, "1", "64-127", "all cores: none of NUMA node 1 may be used"),
        (ADDRESS, "2", "0-3", "all cores: none of NUMA node 2 may be used"),
    ],
)
def test_what_is_not_known_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, address: str | None, node: str, cores: str, told: str
) -> None:
    process = Process(monkeypatch, {0, 1, 2})
    assert bind_to_node(address, machine(tmp_path, node, cores)) == told
    assert process.cores == {0, 1, 2}


def test_this_machine_has_a_node_with_cores() -> None:
    assert node_cores(0) >= os.sched_getaffinity(0) or node_cores(1) or not node_cores(0)
    assert node_cores(10**6) == set()


class _Cycle:
    def __init__(self, ended: list[bool]) -> None:
        self._ended, self._self = ended, self

    def __del__(self) -> None:
        self._ended.append(True)


def _litter(ended: list[bool]) -> None:
    _Cycle(ended)
    # Enough new objects for a collection of the youngest.
    kept = [[] for _ in range(20_000)]
    del kept


def test_nothing_is_collected_in_the_body_and_the_rest_at_its_end() -> None:
    assert gc.isenabled()
    ended: list[bool] = []
    with collection_paused(True):
        _litter(ended)
        assert not ended
    assert ended
    assert gc.isenabled()


def test_collection_goes_on_where_it_is_not_to_pause() -> None:
    ended: list[bool] = []
    with collection_paused(False):
        _litter(ended)
        assert ended


def test_collection_comes_back_after_an_error_and_stays_off_where_it_was() -> None:
    with pytest.raises(KeyError), collection_paused(True):
        raise KeyError
    assert gc.isenabled()
    gc.disable()
    try:
        with collection_paused(True):
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()
