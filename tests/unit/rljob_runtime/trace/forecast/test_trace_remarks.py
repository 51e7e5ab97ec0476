"""What is told of a length trace that lacks prompts, or has few of them."""

from pathlib import Path

import numpy as np
import pytest

from rljob_runtime.data.fingerprint import DataFingerprint
from rljob_runtime.data.length_trace import LengthTrace, read_length_trace
from rljob_runtime.trace.forecast.trace_remarks import enough, fit_note, not_compared, remarks
from tests.support.runtime.traces import lines, written

KNOWN = "a policy that remembers the lengths of prompts knows them from the second time on."
LONG = (
    "what a run has under way when it ends is mostly long, so that responses may be longer than is simulated."
)


def trace(folder: Path, whole: int, incomplete: int = 0, removed: int = 0, cut_off: int = 0) -> LengthTrace:
    """One with so many prompts of two responses; the ones that lack one come last."""
    header = {"removed": removed} if removed else {}
    content = lines(np.full((whole + incomplete, 2), 5), 8, **header)
    lacking = [line for line in content[1 + 2 * whole :] if line["index"]]
    file = written(folder / "t", [line for line in content if line not in lacking])
    file.write_bytes(file.read_bytes() + b'{"ui\n' * cut_off)
    return read_length_trace(file)


@pytest.mark.parametrize(
    ("whole", "incomplete", "steps", "seeds", "told"),
    [
        (8, 0, 2, 3, ""),
        (
            50, 50, 2, 1,
            f"Recorded lengths: 50 of 100 prompts lack a response and are left out, prompt 50 first; {LONG}",
        ),
        (8, 1, 2, 1, f"Recorded lengths: 1 of 9 prompts lacks a response and is left out; {LONG}"),
        (
            7, 0, 2, 1,
            f"Recorded lengths: 7 prompts stand for the 8 of 2 steps, each up to 2 times; {KNOWN} --steps 1 "
            "repeats none.",
        ),
        (
            3, 0, 3, 2,
            f"Recorded lengths: 3 prompts stand for the 12 of 3 steps, each up to 4 times; {KNOWN} That is "
            "less than one step has: steps hardly differ. Seeds differ only in which prompt comes first: "
            "other prompts may deviate more.",
        ),
        (
            1, 0, 2, 2,
            f"Recorded lengths: 1 prompt stands for the 8 of 2 steps, 8 times; {KNOWN} That is less than one "
            "step has: steps hardly differ. All seeds are the same.",
        ),
        (1, 0, 1, 1, f"Recorded lengths: 1 prompt stands for the 4 of 1 step, 4 times; {KNOWN}"),
        (
            3, 1, 1, 1,
            f"Recorded lengths: 1 of 4 prompts lacks a response and is left out; {LONG} 3 prompts stand for "
            f"the 4 of 1 step, each up to 2 times; {KNOWN}",
        ),
    ],
)  # fmt: skip
def test_prompts_that_are_missing_or_stand_for_many_are_told(
    tmp_path: Path, whole: int, incomplete: int, steps: int, seeds: int, told: str
) -> None:
    assert remarks(trace(tmp_path, whole, incomplete), steps, 4, seeds, 8) == told


@pytest.mark.parametrize(
    ("found", "told"),
    [
        ({"whole": 9}, "lengths: 9 prompts; --trace t takes them as they were"),
        (
            {"whole": 9, "removed": 1200, "incomplete": 4, "cut_off": 1},
            "lengths: 9 prompts, without 1,200 that are not in the file any more, 4 that lack a response "
            "(mostly long ones), line 24, which is no whole JSON object; --trace t takes them as they were",
        ),
        ({"whole": 1}, "lengths: 1 prompt: too few to fit; defaults"),
        (
            {"whole": 0, "incomplete": 3},
            "lengths: 0 prompts, without 3 that lack a response (mostly long ones): too few to fit; defaults",
        ),
    ],
)
def test_a_fit_says_which_prompts_it_rests_on(tmp_path: Path, found: dict[str, int], told: str) -> None:
    read = trace(tmp_path, **found)
    assert fit_note("t", read) == told
    assert enough(read) == (told[-8:] != "defaults")


@pytest.mark.parametrize(
    ("longest", "told"),
    [
        (8, ""),
        (
            64,
            "Recorded lengths: 3 of 8 responses were cut off at 8 tokens, the run's maxResponseTokens, "
            "and count as complete; with this job's 64 they may be longer than is simulated.",
        ),
    ],
)
def test_responses_that_a_lower_limit_cut_off_are_told(tmp_path: Path, longest: int, told: str) -> None:
    tokens = np.array([[8, 8], [5, 8], [3, 4], [6, 7]])
    read = read_length_trace(written(tmp_path / "t", lines(tokens, 8)))
    assert remarks(read, 1, 4, 1, longest) == told
    whole = read_length_trace(written(tmp_path / "whole", lines(np.minimum(tokens, 7), 8)))
    assert remarks(whole, 1, 4, 1, longest) == ""


def test_a_fit_says_how_many_responses_were_cut_off(tmp_path: Path) -> None:
    tokens = np.array([[8, 8], [5, 8], [3, 4], [6, 7]])
    read = read_length_trace(written(tmp_path / "t", lines(tokens, 8)))
    assert fit_note("t", read).startswith("lengths: 4 prompts, 38% of responses cut off at 8 tokens; --trace")


def test_a_fit_without_a_trace_says_so() -> None:
    assert fit_note("t", None) == "lengths: t cannot be read; defaults"


def test_prompts_that_nobody_compared_are_told(tmp_path: Path) -> None:
    of = {"source": "p.jsonl", "rows": 4096, "content": "c", "used": "", "order": "in order"}
    tokens = np.full((2, 2), 5)
    known = read_length_trace(written(tmp_path / "t", lines(tokens, 8, data=of)))
    assert not_compared(known, None).startswith(
        "Recorded prompts: 4,096 rows of p.jsonl. They were not compared with this job's"
    )
    assert not_compared(known, DataFingerprint(**of)) == ""
    assert not_compared(read_length_trace(written(tmp_path / "any", lines(tokens, 8))), None) == ""
