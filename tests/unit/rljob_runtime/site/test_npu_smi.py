"""What npu-smi prints, as its descriptions have it. None of it was taken from an NPU of ours."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from rljob_runtime.site.npu_smi import Chip, NpuSmi, NpuSmiError, parse_mapping, parse_usages, visible
from rljob_runtime.site.process_use import ProcessUse, meter_of

MAPPING = """\
\tNPU ID                         Chip ID                        Chip Logic ID                  Chip Name
\t0                              0                              0                              Ascend 910B3
\t0                              1                              -                              Mcu
\t3                              0                              1                              Ascend 910B3
\t3                              1                              -                              Mcu
"""
TWO_CHIPS = """\
\tNPU ID                         Chip ID                        Chip Logic ID                  Chip Name
\t2                              0                              4                              Ascend 310P3
\t2                              1                              5                              Ascend 310P3
"""
SLOTS = """\
        NPU ID        Slot ID       Chip ID       Chip Phy-ID       Chip Name
        5             22            0             5                 Ascend950PR
"""
USAGES = """\
\tNPU ID                         : {npu}
\tChip Count                     : 1

\tDDR Capacity(MB)               : {ddr}
\tDDR Usage Rate(%)              : 9
\tDDR Hugepages Total(page)      : 0
\tDDR Hugepages Usage Rate(%)    : 0
\tHBM Capacity(MB)               : {hbm}
\tHBM Usage Rate(%)              : 25
\tAicore Usage Rate(%)           : {busy}
\tAivector Usage Rate(%)         : 0
\tAicpu Usage Rate(%)            : 0
\tCtrlcpu Usage Rate(%)          : 2
\tDDR Bandwidth Usage Rate(%)    : 0
\tHBM Bandwidth Usage Rate(%)    : 0
\tChip ID                        : 0
"""
MEMORY = """\
\tMemory Capacity(MB)            : 21534
\tMemory Usage Rate(%)           : 50
\tHugepages Total(page)          : 0
\tAicore Usage Rate(%)           : 7
"""


def usages(npu: int = 0, ddr: str = "0", hbm: str = "65536", busy: str = "57") -> str:
    return USAGES.format(npu=npu, ddr=ddr, hbm=hbm, busy=busy)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param(MAPPING, {0: Chip(0, 0), 1: Chip(3, 0)}, id="one chip a card, and one that manages it"),
        pytest.param(TWO_CHIPS, {4: Chip(2, 0), 5: Chip(2, 1)}, id="two chips a card"),
        pytest.param(SLOTS, {5: Chip(5, 0)}, id="other columns"),
        pytest.param(MAPPING.splitlines()[0], {}, id="none"),
    ],
)
def test_which_chips_there_are(text: str, expected: dict[int, Chip]) -> None:
    assert parse_mapping(text) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param(usages(), (0.57, 16384 * 2**20), id="memory of its own"),
        pytest.param(
            usages(ddr="1024", hbm="0"), (0.57, round(1024 * 0.09 * 2**20)), id="no memory of its own"
        ),
        pytest.param(MEMORY, (0.07, 10767 * 2**20), id="one kind of memory"),
        pytest.param(usages(busy="0"), (0.0, 16384 * 2**20), id="idle"),
    ],
)
def test_what_one_does(text: str, expected: tuple[float, int]) -> None:
    assert parse_usages(text) == expected


@pytest.mark.parametrize(
    ("parse", "text", "why"),
    [
        (parse_mapping, "", "columns that are not known: none"),
        (parse_mapping, "Id  Name\n1  x", "columns that are not known: Id, Name"),
        (parse_mapping, MAPPING.replace("\t3 ", "\tx "), "says 'x', which is no number"),
        (parse_usages, "", "says nothing of 'Aicore Usage Rate"),
        (parse_usages, usages(busy="NA"), "says 'NA', which is no number: Aicore Usage Rate"),
        (parse_usages, "Aicore Usage Rate(%) : 3", "says nothing of 'Memory Capacity"),
    ],
)
def test_what_is_not_understood_is_not_taken_for_nothing(parse, text: str, why: str) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(NpuSmiError, match=why):
        parse(text)


@pytest.mark.parametrize(
    ("wanted", "expected"),
    [(None, [Chip(0, 0), Chip(3, 0)]), ("1", [Chip(3, 0)]), ("1,0", [Chip(3, 0), Chip(0, 0)]), ("", [])],
)
def test_a_process_sees_what_its_environment_says(wanted: str | None, expected: list[Chip]) -> None:
    assert visible(parse_mapping(MAPPING), wanted) == expected


def test_one_that_is_not_there_is_told() -> None:
    with pytest.raises(NpuSmiError, match=r"ASCEND_RT_VISIBLE_DEVICES is 7, and npu-smi lists \[0, 1\]"):
        visible(parse_mapping(MAPPING), "7")


def test_a_sample_is_of_all_that_a_process_sees() -> None:
    asked: list[list[str]] = []

    def ask(arguments: Sequence[str]) -> str:
        asked.append(list(arguments))
        return MAPPING if "-m" in arguments else usages(busy="20" if "3" in arguments else "60")

    use = ProcessUse(NpuSmi(ask, {"ASCEND_RT_VISIBLE_DEVICES": "0,1"}))
    for _ in range(2):
        found = use.take()
        assert (found["device_use"], found["device_memory_mib"]) == (0.4, 2 * 16384)
    each = [["info", "-t", "usages", "-i", npu, "-c", "0"] for npu in ("0", "3")]
    assert asked == [["info", "-m"], *each, *each]


def program(folder: Path, script: str) -> None:
    file = folder / "npu-smi"
    file.write_text(f"#!/bin/sh\n{script}\n")
    file.chmod(0o755)


def test_it_is_asked_where_it_is_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("ASCEND_RT_VISIBLE_DEVICES", raising=False)
    assert meter_of("ascend", computes=False) is None
    program(tmp_path, f"case $2 in -m) echo '{MAPPING}';; *) echo '{usages()}';; esac")
    meter = meter_of("ascend", computes=False)
    assert meter is not None and (meter.count(), meter.use(1)) == (2, (0.57, 16384 * 2**20))


def test_one_that_fails_ends_the_samples_of_devices_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    program(tmp_path, "exit 3")
    use = ProcessUse(meter_of("ascend", computes=True))
    assert set(use.take()) == {"cpu", "memory_mib"}
    assert "the use of ascend devices is not sampled" in caplog.text and "exit status 3" in caplog.text
