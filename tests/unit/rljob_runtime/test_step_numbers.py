"""People find one number for a step, wherever they are told of it."""

import gzip
import json
import re
from collections.abc import Callable
from html import unescape
from pathlib import Path

import pytest

from rljob_runtime.trace.export.export import export_trace
from rljob_runtime.trace.record.sample_log import SampleLog
from rljob_runtime.trace.report.page import write_report
from rljob_runtime.trace.report.responses_text import responses_text
from rljob_runtime.trace.report.samples_text import Wanted, samples_text
from rljob_runtime.view.progress import Header, Progress, steps_done
from tests.support.runtime.said import line
from tests.support.runtime.synthetic_run import Job, write_run

STEPS = 12
HEADER = Header("copy", "cpu", {"trainer": 1, "fast": 1, "heavy": 0}, "torch", "tiny Qwen3", 1)


def terminal(run: Path) -> list[int]:
    """After each step: `step 1/12`."""
    return [
        int(steps_done(Progress(HEADER, step=done, total_steps=STEPS)).split("/")[0])
        for done in range(1, STEPS + 1)
    ]


def chooser(run: Path) -> list[int]:
    options = re.findall(r"<option [^>]*>step (\d+)", write_report(run).read_text())
    return [int(number) for number in options]


def charts(run: Path) -> list[int]:
    """What stands at the pointer in any of the report's charts over steps."""
    found = re.findall(r'data-hover="([^"]*)"', write_report(run).read_text())
    data = [json.loads(unescape(each)) for each in found]
    return sorted({round(x) for each in data if each["l"] == "step" for x in each["x"]})


def responses(run: Path) -> list[int]:
    said = [responses_text(run, number) for number in range(1, STEPS + 1)]
    return [int(text.removeprefix("Step ").partition(",")[0]) for text in said]


def samples(run: Path) -> list[int]:
    said = [samples_text(run, Wanted(step=number, count=1), 100).text for number in range(1, STEPS + 1)]
    return [int(text.removeprefix("step ").partition(" ")[0]) for text in said]


def perfetto(run: Path) -> list[int]:
    export_trace(run, run / "trace.json.gz", "trace-event")
    records = json.loads(gzip.decompress((run / "trace.json.gz").read_bytes()))["traceEvents"]
    return [int(each["name"].removeprefix("step ")) for each in records if each.get("cat") == "steps"]


def open_telemetry(run: Path) -> list[int]:
    export_trace(run, run / "trace.otlp.jsonl", "otlp")
    names = re.findall(r'"name": ?"step (\d+)"', (run / "trace.otlp.jsonl").read_text())
    return [int(number) for number in names]


@pytest.mark.parametrize(
    "told",
    [terminal, chooser, charts, responses, samples, perfetto, open_telemetry],
    ids=lambda told: told.__name__,
)
def test_the_first_step_is_step_1(tmp_path: Path, told: Callable[[Path], list[int]]) -> None:
    run = write_run(tmp_path, Job(steps=STEPS))
    log = SampleLog(run)
    log.begin(0)
    for step in range(STEPS):
        log.write([line(step)])
    assert told(run) == list(range(1, STEPS + 1))
