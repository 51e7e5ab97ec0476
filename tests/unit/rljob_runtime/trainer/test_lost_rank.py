"""How a rank is made to end when another one is gone; what it does then takes NCCL
(`tests/runtime/test_nccl_lost_rank.py`)."""

import pytest

from rljob_runtime.trainer.lost_rank import end_at_time_out

NEW, OLD, DUMP = "TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE", "TORCH_NCCL_DUMP_ON_TIMEOUT"


@pytest.mark.parametrize(
    ("given", "becomes"),
    [
        ({}, {NEW: "0", DUMP: "0"}),
        ({DUMP: "1"}, {NEW: "0", DUMP: "1"}),
        ({NEW: "2000"}, {NEW: "2000"}),
        ({OLD: "2000"}, {OLD: "2000"}),
    ],
    ids=["nothing", "a person's dump", "a person's record", "by its old name"],
)
def test_torch_remembers_no_calls_unless_a_person_wants_them(
    given: dict[str, str], becomes: dict[str, str]
) -> None:
    end_at_time_out(given)
    assert given == becomes
