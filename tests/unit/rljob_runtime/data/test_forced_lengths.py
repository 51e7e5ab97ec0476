"""Which traces a job can have its lengths from, and what it is told of others."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rljob_api import RLJob
from rljob_api.training import Training
from rljob_runtime.data.fingerprint import DataFingerprint
from rljob_runtime.data.forced_lengths import ForcedLengths, forced_lengths
from rljob_runtime.data.length_trace import LengthTraceError
from tests.support.jobs import job
from tests.support.runtime.traces import lines, written

TOKENS = np.array([[3, 30], [4, 5], [6, 7], [8, 50]])
DATA: dict[str, Any] = {
    "source": "p.jsonl", "rows": 8, "content": "ab", "used": "", "order": "shuffled with seed 0",
}  # fmt: skip


def training(samples: int = 2, most: int = 50, file: str | None = "t.jsonl") -> Training:
    """Of a job with prompts of up to 16 tokens."""
    rollout = {"samplesPerPrompt": samples, "maxResponseTokens": most, "forcedLengths": file}
    return RLJob.model_validate(job({"training.rollout": rollout})).spec.training


def test_each_response_has_its_length_and_beyond_the_trace_they_repeat(tmp_path: Path) -> None:
    written(tmp_path / "t.jsonl", lines(TOKENS, 50))
    forced = forced_lengths(training(), tmp_path, 4, DataFingerprint(**DATA))
    assert forced is not None
    assert [[forced.of(uid, index) for index in range(2)] for uid in (0, 3, 4, 9)] == [
        [3, 30], [8, 50], [3, 30], [4, 5],
    ]  # fmt: skip


def test_what_stands_behind_a_gap_is_not_used(tmp_path: Path) -> None:
    written(tmp_path / "t.jsonl", lines(TOKENS, 50) + lines(TOKENS, 50, first_uid=6)[1:])
    forced = forced_lengths(training(), tmp_path, 4, None)
    assert forced is not None
    assert forced.tokens.tolist() == TOKENS.tolist()


def test_a_job_that_names_no_trace_has_no_lengths() -> None:
    assert forced_lengths(training(file=None), Path("/nowhere"), 4, None) is None


@pytest.mark.parametrize(
    ("wanted", "groups", "recorded", "message"),
    [
        ({}, 4, {}, None),
        ({}, None, {}, None),
        ({}, 1, DATA, None),
        ({}, 1, {**DATA, "source": "moved.jsonl"}, None),
        ({"most": 1000}, 4, {}, None),
        (
            {"samples": 4},
            4,
            {},
            "has 2 responses to a prompt, and rollout.samplesPerPrompt is 4: set it to 2, or name another "
            "trace",
        ),
        (
            {"most": 49},
            4,
            {},
            "has a response of 50 tokens (line 9: number 1 to prompt 3), above rollout.maxResponseTokens "
            "(49): raise it, or name another trace",
        ),
        (
            {},
            1200,
            {},
            "covers the first 4 prompts, and the job trains 1,200: name a trace of a longer run, or lower "
            "schedule.totalSteps or schedule.epochs",
        ),
        (
            {},
            4,
            {**DATA, "content": "cd", "rows": 9, "source": "q.jsonl"},
            "is of other data than this job's: it was recorded with 9 rows of q.jsonl, and the 8 rows of "
            "p.jsonl have other prompts or answers; name a trace of this data",
        ),
        (
            {},
            4,
            {**DATA, "order": "in order"},
            "is of other data than this job's: its prompts came in order, and this job's come shuffled with "
            "seed 0; name a trace of this data",
        ),
        ({}, 4, {**DATA, "used": "ef"}, "other prompts were left out for their length"),
    ],
)
def test_a_trace_that_does_not_fit_is_refused(
    tmp_path: Path, wanted: dict[str, Any], groups: int | None, recorded: dict[str, Any], message: str | None
) -> None:
    path = written(tmp_path / "t.jsonl", lines(TOKENS, 50, **({"data": recorded} if recorded else {})))
    data = DataFingerprint(**DATA)
    if message is None:
        assert isinstance(forced_lengths(training(**wanted), tmp_path, groups, data), ForcedLengths)
        return
    with pytest.raises(LengthTraceError) as error:
        forced_lengths(training(**wanted), tmp_path, groups, data)
    assert str(error.value).startswith(f"{path} ") and message in str(error.value)


@pytest.mark.parametrize(
    ("first_uids", "groups", "message"),
    [
        ([], None, "covers the first 0 prompts, and the job trains at least 1"),
        ([1], 4, "covers the first 0 prompts without a gap, of 4, and the job trains 4"),
        ([0, 5], 8, "covers the first 4 prompts without a gap, of 8, and the job trains 8"),
    ],
)
def test_a_trace_with_gaps_says_how_far_it_goes(
    tmp_path: Path, first_uids: list[int], groups: int | None, message: str
) -> None:
    content = lines(TOKENS, 50)[:1]
    for uid in first_uids:
        content += lines(TOKENS, 50, first_uid=uid)[1:]
    written(tmp_path / "t.jsonl", content)
    with pytest.raises(LengthTraceError, match=message):
        forced_lengths(training(), tmp_path, groups, None)


@pytest.mark.parametrize(
    ("lacking", "cut_off", "message"),
    [
        ([2], 0, "covers the first 2 prompts without a gap, of 3 (prompt 2 lacks a response), and the job"),
        ([3], 0, "covers the first 3 prompts (prompt 3 lacks a response), and the job trains 4"),
        (
            [1, 2], 1,
            "covers the first 1 prompts without a gap, of 2 (2 more lack a response, prompt 1 first; it is "
            "without line 8, which is no whole JSON object), and the job trains 4",
        ),
        ([0, 1, 2, 3], 0, "covers the first 0 prompts (4 more lack a response, prompt 0 first), and the"),
    ],
)  # fmt: skip
def test_prompts_that_lack_a_response_are_named_where_the_job_needs_them(
    tmp_path: Path, lacking: list[int], cut_off: int, message: str
) -> None:
    content = [line for line in lines(TOKENS, 50) if line.get("uid") not in lacking or line["index"]]
    file = written(tmp_path / "t.jsonl", content)
    file.write_bytes(file.read_bytes() + b'{"ui' * cut_off)
    with pytest.raises(LengthTraceError) as error:
        forced_lengths(training(), tmp_path, 4, None)
    assert str(error.value).startswith(f"{file} {message}")
    if (covered := lacking[0]) > 0:
        assert forced_lengths(training(), tmp_path, covered, None) is not None


def test_prompts_that_cannot_be_the_job_s_are_named(tmp_path: Path) -> None:
    content = lines(TOKENS, 50)
    content[5]["prompt_tokens"] = 16
    written(tmp_path / "t.jsonl", content)
    assert forced_lengths(training(), tmp_path, 4, None) is not None
    content[5]["prompt_tokens"] = 1700
    path = written(tmp_path / "t.jsonl", content)
    with pytest.raises(LengthTraceError) as error:
        forced_lengths(training(), tmp_path, 4, None)
    assert str(error.value) == (
        f"{path} has a prompt of 1,700 tokens (line 6: prompt 2), above data.maxPromptTokens (16), which no "
        "prompt of this job can have: name a trace of its data"
    )


def test_a_trace_that_was_thinned_out_says_that_no_longer_run_helps(tmp_path: Path) -> None:
    content = lines(TOKENS, 50)
    content[0]["removed"] = 1200
    written(tmp_path / "t.jsonl", [*content, *lines(TOKENS, 50, first_uid=40)[1:]])
    with pytest.raises(LengthTraceError) as error:
        forced_lengths(training(), tmp_path, 8, None)
    assert str(error.value).endswith(
        "covers the first 4 prompts without a gap, of 8 (those of 1,200 later ones were taken out when the "
        "file grew large), and the job trains 8: lower schedule.totalSteps or schedule.epochs"
    )
    assert forced_lengths(training(), tmp_path, 4, None) is not None


def test_data_that_are_not_known_yet_are_not_compared(tmp_path: Path) -> None:
    written(tmp_path / "t.jsonl", lines(TOKENS, 50, data=DATA))
    assert forced_lengths(training(), tmp_path, None, None) is not None
