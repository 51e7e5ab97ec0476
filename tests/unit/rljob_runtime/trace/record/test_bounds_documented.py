"""What each file of a run's folder may take stands in docs/profiling.md as it is in the code."""

import re
from pathlib import Path

import pytest

from rljob_api.schedule import Profiling
from rljob_runtime.driver.run_log import LOG_BYTES
from rljob_runtime.short_files import LIMIT_BYTES
from rljob_runtime.trace.record import evaluation_log, length_log, metrics_log, sample_log, tensorboard_file

PAGE = Path(__file__).parents[5] / "docs" / "profiling.md"
MIB = 1 << 20
EVENTS = Profiling().max_events_mi_b * MIB


def bounds() -> dict[str, str]:
    """The last cell of each row, by the files of the first one."""
    text = PAGE.read_text().split("\n## What a run's folder takes\n", 1)[1].split("\n## ", 1)[0]
    rows = [line.split(" | ") for line in text.splitlines() if line.startswith("| `")]
    return {file: cells[-1] for cells in rows for file in re.findall(r"`([^`]+)`", cells[0])}


@pytest.mark.parametrize(
    ("file", "most"),
    [
        ("lengths.jsonl", length_log.MOST_BYTES),
        ("samples.jsonl", sample_log.MOST_BYTES),
        ("evaluation_samples.jsonl", sample_log.MOST_BYTES),
        ("metrics.jsonl", metrics_log.MOST_BYTES),
        ("tensorboard/", tensorboard_file.MOST_BYTES),
        ("evaluations.jsonl", evaluation_log.MOST_BYTES),
        ("driver.log", 2 * LOG_BYTES),
        ("rewards.log", 2 * LIMIT_BYTES),
        ("logs/", 2 * LIMIT_BYTES),
    ],
)
def test_the_bound_of_a_file(file: str, most: int) -> None:
    assert bounds()[file].startswith(f"{most // MIB} MiB")


def test_what_all_files_take_together() -> None:
    most = [length_log, sample_log, sample_log, metrics_log, tensorboard_file, evaluation_log]
    whole = EVENTS + sum(module.MOST_BYTES for module in most) + 2 * LOG_BYTES + 2 * LIMIT_BYTES
    assert f"it has some {whole / 2**30:.1f} GiB at most" in PAGE.read_text()


def test_the_parts_of_lengths_that_stay_whole() -> None:
    first, newest = (
        int(share * length_log.MOST_BYTES) // MIB for share in (length_log.FIRST, length_log.NEWEST)
    )
    assert f"but for the first {first} MiB and the newest {newest}:" in bounds()["lengths.jsonl"]
