"""lengths.jsonl: a line for each response, none twice, whatever interrupts the run."""

import json
import logging
import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from rljob_runtime.data.fingerprint import DataFingerprint
from rljob_runtime.data.length_trace import LENGTHS_FILE, TraceHeader, read_length_trace
from rljob_runtime.groups.responses import Response
from rljob_runtime.routing.policy import Expectation
from rljob_runtime.samples import FinishReason, Prompt, Span
from rljob_runtime.trace.record.length_log import LengthLog
from tests.support.disks import fill, small_disk

DATA = DataFingerprint("p.jsonl", 8, "ab", "", "in order")
HEADER = TraceHeader(2, 100, DATA)


def nothing(uid: int) -> bool:
    return False


def prompt(uid: int) -> Prompt:
    return Prompt(uid, epoch=1, row=uid + 5, tokens=np.arange(7, dtype=np.int32))


def response(length: int, finish: FinishReason = "stop") -> Response:
    tokens = np.zeros(length, np.int32)
    spans = (Span(3, 0, length),)
    return Response(1000.5, tokens, tokens.astype(np.float32), spans, finish, "heavy-1", "heavy", 2, 4.0)


def log(folder: Path, kept: Callable[[int], bool] = nothing, header: TraceHeader = HEADER) -> LengthLog:
    made = LengthLog(folder, header, clock=lambda: 0.0)
    made.begin(kept)
    return made


def record(lengths: LengthLog, *uids: int) -> None:
    """Groups whose responses have the lengths that their uid says."""
    for uid in uids:
        lengths.add(prompt(uid), [response(10 + uid % 50), response(20 + uid % 50)])
    lengths.flush()


def test_a_line_says_what_became_of_a_response(tmp_path: Path) -> None:
    lengths = log(tmp_path)
    lengths.add(prompt(4), [response(30), response(100, "length")])
    lengths.flush()
    header, first, second = [json.loads(line) for line in (tmp_path / LENGTHS_FILE).read_text().splitlines()]
    assert header["format"] == "rljob-lengths-1"
    assert first == {
        "uid": 4, "index": 0, "response_tokens": 30, "epoch": 1, "row": 9, "prompt_tokens": 7,
        "finish": "stop", "engine": "heavy-1", "pool": "heavy", "begun": 1000.5, "seconds": 4.0, "moves": 2,
        "version": 3, "expected": None, "cut": None,
    }  # fmt: skip
    assert second == {**first, "index": 1, "response_tokens": 100, "finish": "length"}


def test_what_is_written_can_be_read(tmp_path: Path) -> None:
    record(log(tmp_path), 1, 0)
    trace = read_length_trace(tmp_path / LENGTHS_FILE)
    assert trace.header == HEADER
    assert trace.tokens.tolist() == [[10, 20], [11, 21]]
    assert (trace.rows.tolist(), trace.prompt_tokens.tolist()) == ([5, 6], [7, 7])
    assert (trace.begun[0, 0], trace.seconds[0, 0]) == (1000.5, 4.0)


@pytest.mark.parametrize(
    ("kept", "again", "uids"),
    [
        ({0, 1, 2, 3}, [4], [0, 1, 2, 3, 4]),
        ({0, 2}, [1, 3], [0, 1, 2, 3]),
        (set(), [0, 1, 2, 3], [0, 1, 2, 3]),
        # One that was never recorded, as when a kill took what was buffered.
        ({0, 1, 7}, [2], [0, 1, 2]),
    ],
)
@pytest.mark.parametrize("cut", [b"", b'{"uid": 0, "ind', b'{"uid": 0}'])
def test_a_run_that_goes_on_has_each_response_once(
    tmp_path: Path, kept: set[int], again: list[int], uids: list[int], cut: bytes
) -> None:
    record(log(tmp_path), 0, 1, 2, 3)
    with (tmp_path / LENGTHS_FILE).open("ab") as file:
        file.write(cut)
    record(log(tmp_path, kept.__contains__), *again)
    trace = read_length_trace(tmp_path / LENGTHS_FILE)
    assert (trace.uids.tolist(), trace.incomplete, trace.unreadable) == (uids, 0, 0)
    assert [path.name for path in tmp_path.iterdir()] == [LENGTHS_FILE]


def test_what_is_buffered_when_a_job_goes_back_is_cut_out_too(tmp_path: Path) -> None:
    lengths = log(tmp_path)
    lengths.add(prompt(0), [response(10), response(20)])
    lengths.add(prompt(1), [response(11), response(21)])
    lengths.begin({1}.__contains__)
    record(lengths, 0)
    assert read_length_trace(tmp_path / LENGTHS_FILE).tokens.tolist() == [[10, 20], [11, 21]]


@pytest.mark.parametrize(
    "header",
    [
        TraceHeader(4, 100, DATA),
        TraceHeader(2, 200, DATA),
        TraceHeader(2, 100, DataFingerprint("q.jsonl", 8, "cd", "", "in order")),
    ],
)
def test_lengths_of_another_form_are_kept_beside(tmp_path: Path, header: TraceHeader) -> None:
    record(log(tmp_path), 0)
    before = (tmp_path / LENGTHS_FILE).read_bytes()
    for _ in range(2):
        record(log(tmp_path, {0}.__contains__, header), 1)
    assert (tmp_path / "lengths.1.jsonl").read_bytes() == before
    assert read_length_trace(tmp_path / LENGTHS_FILE).header == header
    log(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "lengths.1.jsonl", "lengths.2.jsonl", LENGTHS_FILE,
    ]  # fmt: skip


def test_groups_reach_the_file_in_batches_and_after_a_while(tmp_path: Path) -> None:
    now = 0.0
    lengths = LengthLog(tmp_path, HEADER, clock=lambda: now, buffer_lines=6, flush_seconds=5)
    lengths.begin(nothing)

    def written() -> int:
        return len((tmp_path / LENGTHS_FILE).read_text().splitlines()) - 1

    found = []
    for uid, now in enumerate([1.0, 2.0, 3.0, 4.0, 9.0, 10.0]):  # noqa: B007 - the log's clock reads it
        lengths.add(prompt(uid), [response(1), response(2)])
        found.append(written())
    assert found == [0, 0, 6, 6, 10, 10]


def test_a_full_disk_ends_the_recording_and_nothing_else(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with small_disk(tmp_path / "disk", 1) as disk, caplog.at_level(logging.WARNING):
        lengths = log(disk)
        record(lengths, 0)
        fill(disk, left=0)
        for uid in range(1, 100):
            record(lengths, uid)
        lengths.begin(nothing)
        trace = read_length_trace(disk / LENGTHS_FILE)
    assert trace.tokens[0].tolist() == [10, 20]
    (entry,) = caplog.records
    assert f"lengths of responses are not recorded from here on: {disk / LENGTHS_FILE}: " in entry.message


def grown(folder: Path, groups: int, most: int) -> LengthLog:
    """Groups of about 400 bytes, with a look at the file after every tenth."""
    lengths = LengthLog(folder, HEADER, clock=lambda: 0.0, most_bytes=most)
    lengths.begin(nothing)
    for uid in range(groups):
        record(lengths, uid)
        if uid % 10 == 9:
            lengths.make_room()
            assert (folder / LENGTHS_FILE).stat().st_size <= most
    return lengths


def test_a_large_file_keeps_its_begin_and_its_newest_part_and_less_and_less_between(tmp_path: Path) -> None:
    grown(tmp_path, 1000, most=40_000)
    trace = read_length_trace(tmp_path / LENGTHS_FILE)
    assert trace.header == TraceHeader(2, 100, DATA, removed=1000 - len(trace.uids))
    assert (trace.incomplete, trace.unreadable) == (0, 0)
    # A quarter of the bytes, and an eighth.
    assert trace.covered >= 20 and trace.uids[-10:].tolist() == list(range(990, 1000))
    gaps = np.diff(trace.uids)[trace.covered :]
    assert gaps[0] > 8 and gaps.tolist() == sorted(gaps, reverse=True)
    assert [path.name for path in tmp_path.iterdir()] == [LENGTHS_FILE]


def test_a_run_whose_file_was_thinned_out_goes_on_in_it(tmp_path: Path) -> None:
    grown(tmp_path, 400, most=40_000)
    before = read_length_trace(tmp_path / LENGTHS_FILE)
    record(log(tmp_path, set(range(390)).__contains__), *range(390, 400))
    after = read_length_trace(tmp_path / LENGTHS_FILE)
    assert after.header == before.header and after.header.removed > 0
    assert after.uids.tolist() == before.uids.tolist()
    assert [path.name for path in tmp_path.iterdir()] == [LENGTHS_FILE]


def test_a_run_of_the_last_release_goes_on_in_its_file(tmp_path: Path) -> None:
    """Whose first line knows nothing of what was removed, as that of a file of which nothing was."""
    record(log(tmp_path), 0)
    header, *responses = (tmp_path / LENGTHS_FILE).read_text().splitlines()
    assert json.loads(header).keys() == {"format", "samples_per_prompt", "max_response_tokens", "data"}
    record(log(tmp_path, {0}.__contains__), 1)
    assert (tmp_path / LENGTHS_FILE).read_text().splitlines()[:3] == [header, *responses]
    assert [path.name for path in tmp_path.iterdir()] == [LENGTHS_FILE]


def test_what_is_recorded_while_the_file_is_thinned_out_is_there(tmp_path: Path) -> None:
    lengths = LengthLog(tmp_path, HEADER, clock=lambda: 0.0, buffer_lines=2, most_bytes=200_000)
    lengths.begin(nothing)
    record(lengths, *range(2000))
    thread = threading.Thread(target=lengths.make_room)
    thread.start()
    for uid in range(2000, 2600):
        lengths.add(prompt(uid), [response(1), response(2)])
    thread.join()
    trace = read_length_trace(tmp_path / LENGTHS_FILE)
    assert trace.header.removed > 1000 and trace.incomplete == trace.unreadable == 0
    assert trace.header.removed + len(trace.uids) == 2600 and trace.uids[-1] == 2599


def test_a_file_that_cannot_be_thinned_out_grows_on_with_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with small_disk(tmp_path / "disk", 1) as disk, caplog.at_level(logging.WARNING):
        lengths = LengthLog(disk, HEADER, clock=lambda: 0.0, most_bytes=100_000)
        lengths.begin(nothing)
        record(lengths, *range(300))
        ballast = fill(disk, left=40_000)
        for uid in range(300, 320):
            lengths.make_room()
            record(lengths, uid)
        assert len(read_length_trace(disk / LENGTHS_FILE).uids) == 320
        assert not list(disk.glob("*.tmp"))
        (entry,) = caplog.records
        assert f"{disk / LENGTHS_FILE} grows beyond 100000 bytes: No space left" in entry.message
        # With room again it is thinned out when it has grown by an eighth of the bytes.
        ballast.unlink()
        for uid in range(320, 400):
            lengths.make_room()
            record(lengths, uid)
        lengths.make_room()
        assert (disk / LENGTHS_FILE).stat().st_size <= 100_000
        assert read_length_trace(disk / LENGTHS_FILE).uids[-1] == 399
    assert len(caplog.records) == 1


def test_a_look_at_a_file_that_is_gone_ends_the_recording(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    lengths = log(tmp_path)
    record(lengths, 0)
    (tmp_path / LENGTHS_FILE).unlink()
    with caplog.at_level(logging.WARNING):
        lengths.make_room()
    assert not lengths.records
    record(lengths, 1)
    (entry,) = caplog.records
    assert f"lengths of responses are not recorded from here on: {tmp_path / LENGTHS_FILE}: " in entry.message


def test_what_a_kill_left_of_a_file_that_was_written_anew_goes(tmp_path: Path) -> None:
    left = (tmp_path / LENGTHS_FILE).with_suffix(".tmp")
    left.write_bytes(b"x")
    record(log(tmp_path), 0)
    assert [path.name for path in tmp_path.iterdir()] == [LENGTHS_FILE]


def test_without_a_folder_nothing_is_recorded() -> None:
    lengths = LengthLog(None, HEADER)
    lengths.begin(nothing)
    record(lengths, 0, 1)
    lengths.make_room()


def test_a_line_says_what_was_expected(tmp_path: Path) -> None:
    lengths, expected = log(tmp_path), response(30)
    expected.expect(Expectation(41.7, 80.2))
    never_long = response(30)
    never_long.expect(Expectation(41.7, float("inf")))
    lengths.add(prompt(0), [expected, never_long])
    lengths.flush()
    _, *lines = [json.loads(line) for line in (tmp_path / LENGTHS_FILE).read_text().splitlines()]
    assert [(line["expected"], line["cut"]) for line in lines] == [(42, 80), (42, None)]
    assert read_length_trace(tmp_path / LENGTHS_FILE).tokens.tolist() == [[30, 30]]
