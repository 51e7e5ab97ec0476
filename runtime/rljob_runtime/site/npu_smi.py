"""What Ascend NPUs do, as the program npu-smi of their driver tells it.

Guarantees: a process that asks computes nothing on a device, and takes none of its memory; an answer that is
not understood, or does not come, raises `NpuSmiError`, and is never taken for 0.

Written after the descriptions of `npu-smi info -m` and `npu-smi info -t usages`; not run on an NPU.
"""

import os
import re
import shutil
import subprocess
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, Self

_SECONDS = 10.0
"""Longest that npu-smi may take; of one that hangs nothing more is asked."""
_MIB = 2**20

Ask = Callable[[Sequence[str]], str]
"""Runs npu-smi with these arguments; what it prints."""


class NpuSmiError(RuntimeError):
    """npu-smi did not say what it was asked for; the message says what."""


class Chip(NamedTuple):
    """How npu-smi names a device."""

    npu: int
    chip: int


class NpuSmi:
    """The devices that this process sees, asked one by one."""

    accelerator = "ascend"

    def __init__(self, ask: Ask, environment: Mapping[str, str]) -> None:
        """`environment`: with ASCEND_RT_VISIBLE_DEVICES it sees those devices alone."""
        self._ask = ask
        self._visible = environment.get("ASCEND_RT_VISIBLE_DEVICES")
        self._chips: list[Chip] | None = None

    @classmethod
    def found(cls) -> Self | None:
        """With the npu-smi of this machine; None where there is none."""
        program = shutil.which("npu-smi")
        return None if program is None else cls(_asks(program), os.environ)

    def count(self) -> int:
        """How many devices this process sees. Raises `NpuSmiError`."""
        return len(self._seen())

    def use(self, index: int) -> tuple[float, int]:
        """Share of the newest moments, 0 to 1, in which device `index` computed, and bytes of its memory that
        are in use. Raises `NpuSmiError`."""
        npu, chip = self._seen()[index]
        return parse_usages(self._ask(["info", "-t", "usages", "-i", str(npu), "-c", str(chip)]))

    def _seen(self) -> list[Chip]:
        if self._chips is None:
            self._chips = visible(parse_mapping(self._ask(["info", "-m"])), self._visible)
        return self._chips


def visible(chips: Mapping[int, Chip], wanted: str | None) -> list[Chip]:
    """Those of the chips, by logical number, that a value of ASCEND_RT_VISIBLE_DEVICES names, in its order;
    all where it is None. Raises `NpuSmiError`."""
    if wanted is None:
        return [chips[number] for number in sorted(chips)]
    try:
        return [chips[int(number)] for number in wanted.split(",") if number.strip()]
    except (KeyError, ValueError):
        raise NpuSmiError(
            f"ASCEND_RT_VISIBLE_DEVICES is {wanted}, and npu-smi lists {sorted(chips)}"
        ) from None


def parse_mapping(text: str) -> dict[int, Chip]:
    """Of what `npu-smi info -m` prints, the chips that compute, by logical number. Raises `NpuSmiError`."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    # Columns are found by their names: drivers differ in which they have.
    names = re.split(r"\s{2,}", lines[0]) if lines else []
    wanted = [name for name in ("Chip Logic ID", "Chip Phy-ID") if name in names]
    if not wanted or not {"NPU ID", "Chip ID"} <= set(names):
        raise NpuSmiError(f"`npu-smi info -m` has columns that are not known: {', '.join(names) or 'none'}")
    found = {}
    for line in lines[1:]:
        cells = dict(zip(names, line.split(None, len(names) - 1), strict=False))
        logical = cells.get(wanted[0], "")
        # A chip that manages the others has a dash there.
        if logical.isdecimal():
            found[int(logical)] = Chip(_number(cells["NPU ID"], line), _number(cells["Chip ID"], line))
    return found


def parse_usages(text: str) -> tuple[float, int]:
    """Of what `npu-smi info -t usages` prints of one chip: share of time in which its AI cores computed, 0 to
    1, and bytes of its memory in use. Raises `NpuSmiError`."""
    told = {key.strip(): value.strip() for key, _, value in map(_parted, text.splitlines())}
    busy = _first(told, "Aicore Usage Rate(%)", text)
    # Chips with memory of their own beside the processor's tell of both, and of 0 MB where there is none.
    kind = "HBM" if told.get("HBM Capacity(MB)", "0") not in ("0", "NA") else "DDR"
    if f"{kind} Capacity(MB)" not in told:
        kind = "Memory"
    capacity = _first(told, f"{kind} Capacity(MB)", text)
    used = _first(told, f"{kind} Usage Rate(%)", text)
    return busy / 100, round(capacity * used / 100 * _MIB)


def _parted(line: str) -> tuple[str, str, str]:
    return line.partition(":")


def _first(told: Mapping[str, str], key: str, text: str) -> int:
    if key not in told:
        raise NpuSmiError(f"`npu-smi info -t usages` says nothing of {key!r}: {text.strip()[:200]!r}")
    return _number(told[key], key)


def _number(value: str, where: str) -> int:
    if not value.isdecimal():
        raise NpuSmiError(f"npu-smi says {value!r}, which is no number: {where}")
    return int(value)


def _asks(program: str) -> Ask:
    def ask(arguments: Sequence[str]) -> str:
        command = [program, *arguments]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=_SECONDS, check=True)
        except (OSError, subprocess.SubprocessError) as error:
            raise NpuSmiError(str(error)) from error
        return done.stdout

    return ask
