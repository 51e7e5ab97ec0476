"""A run's folder as a file for Perfetto."""

import gzip
import json
import os
import tracemalloc
from pathlib import Path

import pytest
from jsonschema import Draft202012Validator

from rljob_runtime.cli import main
from rljob_runtime.run_folder import Begin, held
from rljob_runtime.trace.export.export import NoFile, NothingToExport, export_trace
from rljob_runtime.trace.record.event_log import EventLog
from tests.support.jobs import job
from tests.support.runtime.synthetic_run import Job, write_run
from tests.support.runtime.trace_format import check_format

SCHEMA = Draft202012Validator(
    json.loads((Path(__file__).parents[4] / "support" / "runtime" / "trace_event_schema.json").read_text())
)


def many(folder: Path, events: int) -> Path:
    """A run folder with so many events of one engine in one step."""
    log = EventLog(folder / "events", 1, "fast-0", "fast")
    for number in range(events):
        log.add("generate", 0, float(number), 1.5, uid=number, request=f"{number}.0#1", tokens=10)
    log.flush()
    return folder


@pytest.mark.parametrize("shape", [Job(steps=8), Job(steps=8, restart_at=6), Job(steps=8, by_length=True)])
def test_a_run_becomes_a_valid_trace(tmp_path, shape):
    folder = write_run(tmp_path / "run", shape)
    count, tally = export_trace(folder, tmp_path / "trace.json")
    document = json.loads((tmp_path / "trace.json").read_text())
    SCHEMA.validate(document)
    records = document["traceEvents"]
    check_format(records)
    assert (len(records), tally.unreadable) == (count, 0)
    assert sorted({record["ph"] for record in records}) == ["C", "M", "X", "b", "e"]
    steps = [record["name"] for record in records if record.get("cat") == "steps"]
    assert steps == [f"step {number}" for number in range(1, 9)]


@pytest.mark.parametrize("form", ["trace-event", "otlp"])
@pytest.mark.parametrize("name", ["t.json", "t.json.gz"])
def test_an_export_takes_the_place_of_an_earlier_one_alone(tmp_path, capsys, form, name):
    """A run's records were written over, where --output named them, and any file elsewhere."""
    manifest = tmp_path / "job.yaml"
    manifest.write_text(json.dumps(job()))
    with held(tmp_path / "run", manifest.read_bytes(), Begin.NEW) as found:
        found.begin()
    folder = write_run(tmp_path / "run", Job(steps=2))
    command = ["trace", "export", str(folder), "--format", form, "--output"]
    for _ in range(2):
        assert main([*command, str(folder / name)]) == 0
    empty = tmp_path / "elsewhere.json"
    empty.touch()
    assert main([*command, str(empty)]) == 0
    # Named as a file that is being written might be.
    other = tmp_path / f"{name}.part"
    other.write_text("mine")
    assert main([*command, str(tmp_path / name)]) == 0
    capsys.readouterr()
    assert main([*command, str(other)]) == 2
    told = f"rljob: {other} is there already, and is no export, and would be written over: name another "
    assert capsys.readouterr().err == told + "with --output.\n"
    assert other.read_text() == "mine"
    assert main([*command, ""]) == 2
    assert capsys.readouterr().err == "rljob: --output names no file: name one.\n"
    for own in ("metrics.jsonl", "job.yaml"):
        before = (folder / own).read_bytes()
        assert main([*command, str(folder / own)]) == 2
        assert capsys.readouterr().err == (
            f"rljob: {folder / own} is one of the run's own files, and would be written over: name another "
            "with --output.\n"
        )
        assert (folder / own).read_bytes() == before


@pytest.mark.parametrize(
    "wrong",
    [
        {"ph": "X", "name": "forward", "pid": 1, "tid": 1, "ts": 1},
        {"ph": "b", "name": "request", "cat": "requests", "pid": 1, "tid": 0, "ts": 1},
        {"ph": "C", "name": "use", "pid": 1, "ts": 1, "args": {"cpu": "much"}},
        {"ph": "M", "name": "process_name", "pid": 1, "args": {"sort_index": 1}},
        {"ph": "Q", "name": "forward", "pid": 1},
    ],
)
def test_the_schema_refuses_what_the_format_does_not_have(wrong):
    assert not SCHEMA.is_valid({"traceEvents": [wrong]})


def test_a_name_that_ends_in_gz_is_compressed(tmp_path):
    folder = many(tmp_path, 3)
    export_trace(folder, tmp_path / "plain.json")
    export_trace(folder, tmp_path / "trace.json.gz")
    assert (
        gzip.decompress((tmp_path / "trace.json.gz").read_bytes()) == (tmp_path / "plain.json").read_bytes()
    )


def test_lines_that_cannot_be_read_are_counted(tmp_path):
    folder = many(tmp_path, 3)
    with (folder / "events" / "step_0" / "worker_1.jsonl").open("a") as file:
        file.write('{"event": "gener')
    _, tally = export_trace(folder, tmp_path / "trace.json")
    assert tally.unreadable == 1


def test_memory_does_not_grow_with_the_events(tmp_path):
    peaks = []
    for events in (8_000, 24_000):
        folder = many(tmp_path / str(events), events)
        tracemalloc.start()
        export_trace(folder, tmp_path / "trace.json")
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] < 1.5 * peaks[0]


def test_a_run_without_events_leaves_no_file(tmp_path):
    with pytest.raises(NothingToExport, match=r"has no event: was training\.profiling\.events false\?"):
        export_trace(tmp_path, tmp_path / "trace.json")
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_cannot_be_finished_is_not_there(tmp_path):
    folder = many(tmp_path / "run", 3)
    (tmp_path / "trace.json").mkdir()
    with pytest.raises(OSError, match=r"trace\.json"):
        export_trace(folder, tmp_path / "trace.json")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["run", "trace.json"]


@pytest.mark.parametrize("linked", [False, True])
def test_what_is_no_file_is_not_replaced(tmp_path, linked):
    """As /dev/stdout and /dev/null, which root would take from everybody."""
    folder, pipe, link = many(tmp_path / "run", 3), tmp_path / "pipe", tmp_path / "link"
    os.mkfifo(pipe)
    link.symlink_to(pipe)
    with pytest.raises(NoFile, match="name a file with --output"):
        export_trace(folder, link if linked else pipe)
    assert pipe.is_fifo() and link.is_symlink()


def test_the_command(tmp_path, capsys):
    (tmp_path / "job.yaml").write_text(json.dumps(job()))
    folder = tmp_path / "run"
    with held(folder, (tmp_path / "job.yaml").read_bytes(), Begin.NEW) as found:
        found.begin()
    assert main(["trace", "export", str(folder)]) == 2
    assert "has no event" in capsys.readouterr().err
    many(folder, 2)
    assert main(["trace", "export", str(folder)]) == 0
    file = folder / "trace.json.gz"
    assert capsys.readouterr().out == (
        f"{file}: 6 records; open it in https://ui.perfetto.dev or chrome://tracing\n"
    )
    check_format(json.loads(gzip.decompress(file.read_bytes()))["traceEvents"])
    nowhere = tmp_path / "none" / "t.json"
    assert main(["trace", "export", str(folder), "--output", str(nowhere)]) == 2
    assert capsys.readouterr().err.startswith(f"rljob: the folder {nowhere.parent} is not there: make it, or")


@pytest.mark.parametrize(("form", "name"), [("trace-event", "trace.json"), ("otlp", "trace.otlp.jsonl")])
def test_what_is_printed_is_what_a_file_would_have(tmp_path, capsysbinary, monkeypatch, form, name):
    """`-` was the name of a file."""
    manifest = tmp_path / "job.yaml"
    manifest.write_text(json.dumps(job()))
    with held(tmp_path / "run", manifest.read_bytes(), Begin.NEW) as found:
        found.begin()
    folder = many(tmp_path / "run", 2)
    monkeypatch.chdir(tmp_path)
    command = ["trace", "export", str(folder), "--format", form, "--output"]
    assert main([*command, name]) == 0
    capsysbinary.readouterr()
    assert main([*command, "-"]) == 0
    printed = capsysbinary.readouterr()
    assert printed.out == (tmp_path / name).read_bytes()
    assert printed.err.startswith(b"<stdout>: ")
    assert not (tmp_path / "-").exists()
