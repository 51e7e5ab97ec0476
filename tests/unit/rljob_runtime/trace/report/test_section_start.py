"""What the report shows of starts."""

import re
from pathlib import Path

from rljob_runtime.site.own_start import StartPart
from rljob_runtime.trace.analyse.analysis import analyse_run
from rljob_runtime.trace.record.event_log import EVENTS_FOLDER, EventLog
from rljob_runtime.trace.record.worker_start import record_start
from rljob_runtime.trace.report.page import render
from rljob_runtime.trace.report.section_start import starting
from tests.support.runtime.synthetic_run import EPOCH, Job, write_run

TITLE = "Where did the time of the start go?"
ENGINE = (
    ("process", -80.0, 6.0), ("imports", -74.0, 14.0), ("boot", -74.0, 16.0), ("core", -60.0, 60.0),
    ("load", -50.0, 4.0), ("profile", -45.0, 30.0),
)  # fmt: skip
RANK = (("process", -80.0, 5.0), ("imports", -70.0, 30.0), ("load", -40.0, 20.0))
WORDS = "ready after 85 s: engine fast-0 was last"


def with_starts(folder: Path, job: Job) -> Path:
    """A run whose workers started before its first step; an engine <again> after it."""
    run = write_run(folder, job)
    for number, (worker, pool, parts, later) in enumerate(
        [
            ("driver", "driver", (("ray", -85.0, 4.0),), 0.0),
            ("fast-0", "fast", ENGINE, 0.0),
            ("trainer-0", "trainer", RANK, 0.0),
            ("fast-<9>", "fast", ENGINE, 100.0),
        ]
    ):
        log = EventLog(run / EVENTS_FOLDER, 200 + number, worker, pool)
        record_start(log, 0, [StartPart(name, EPOCH + at + later, took) for name, at, took in parts])
        if worker == "driver":
            log.add("start", 0, EPOCH - 85.0, 85.0, part="ready", since=EPOCH - 85.0, words=WORDS)
        log.flush()
    return run


def cells(page: str) -> list[list[str]]:
    rows = re.findall(r"<tr>(<td.*?)</tr>", page)
    return [[re.sub(r"<.*?>", "", cell) for cell in re.findall(r"<td.*?>(.*?)</td>", row)] for row in rows]


def test_each_worker_has_its_parts(tmp_path: Path) -> None:
    page = starting(analyse_run(with_starts(tmp_path, Job(steps=4))))
    assert f"<p>Ready{WORDS.removeprefix('ready')}.</p>" in page
    heads = re.findall(r"<th(?: class=\w)?>(.*?)</th>", page)
    assert heads == [
        "worker", "until it was ready", "share of that time", "ray", "process", "imports", "boot", "core",
        "load", "profile", "between these",
    ]  # fmt: skip
    assert cells(page) == [
        ["driver", "4 s", "", "4 s", "–", "–", "–", "–", "–", "–", "0 µs"],
        ["trainer-0", "60 s", "", "–", "5 s", "30 s", "–", "–", "20 s", "–", "5 s"],
        ["fast-0", "80 s", "", "–", "6 s", "14 s", "16 s", "60 s", "4 s", "30 s", "0 µs"],
        ["fast-&lt;9&gt;", "80 s", "", "–", "6 s", "14 s", "16 s", "60 s", "4 s", "30 s", "0 µs"],
    ]
    bars = re.findall(r'<div class="bar">(.*?)</div>', page)
    for bar in bars:
        assert sum(map(float, re.findall(r"width:([\d.]+)%", bar))) <= 100.1
    # What the core consists of stands in its place: the rest of it is 60 - 4 - 30 of 80 s.
    assert 'title="core 32 %"' in bars[3] and 'title="profile 38 %"' in bars[3]


def test_a_run_without_them_shows_nothing(tmp_path: Path) -> None:
    analysis = analyse_run(write_run(tmp_path, Job(steps=4)))
    assert starting(analysis) == ""
    assert TITLE not in render(analysis, None, "job")


def test_starts_are_in_no_other_figure(tmp_path: Path) -> None:
    """Neither those before the first step, nor that of an engine which came later."""
    without = analyse_run(write_run(tmp_path / "without", Job(steps=6)))
    found = analyse_run(with_starts(tmp_path / "with", Job(steps=6)))
    assert found.windows == without.windows and found.superseded == 0
    assert {(use.pool, use.event) for use in found.event_uses.values()} == {
        (use.pool, use.event) for use in without.event_uses.values()
    }
    assert [(pool.pool, pool.overall, pool.seconds, pool.by_step) for pool in found.pools] == [
        (pool.pool, pool.overall, pool.seconds, pool.by_step) for pool in without.pools
    ]
    assert found.details == without.details
    section = starting(found)
    assert render(found, None, "job").replace(section, "").count(">start") == 0


def test_windows_without_metrics_begin_with_the_first_work(tmp_path: Path) -> None:
    runs = [make(tmp_path / make.__name__, Job(steps=4)) for make in (write_run, with_starts)]
    for run in runs:
        (run / "metrics.jsonl").unlink()
    without, found = map(analyse_run, runs)
    assert found.windows == without.windows != []
