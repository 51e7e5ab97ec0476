"""The report of a run: what stands in it, that it needs nothing else, and that it stays small."""

import json
import re
import shutil
from html.parser import HTMLParser
from pathlib import Path

import pytest

from rljob_runtime.evaluation.scores import GradedResponse, score_set
from rljob_runtime.trace.analyse.analysis import analyse_run
from rljob_runtime.trace.forecast.sizing import Unfinished
from rljob_runtime.trace.record.evaluation_log import EvaluationLine, EvaluationLog
from rljob_runtime.trace.record.metrics_log import METRICS_FILE
from rljob_runtime.trace.record.start_log import Start
from rljob_runtime.trace.record.unsent_log import KEPT, Unsent, append_unsent
from rljob_runtime.trace.report import page as page_module
from rljob_runtime.trace.report.charts import (
    POINTS,
    Series,
    curve_chart,
    line_chart,
    stacked_chart,
    tick_labels,
    ticks,
)
from rljob_runtime.trace.report.page import write_report
from rljob_runtime.trace.report.section_lost import interruption
from tests.support.jobs import job
from tests.support.runtime.synthetic_run import Job, write_run

VOID = {"meta"}


class Balance(HTMLParser):
    """Checks that every element is closed, and collects addresses and texts."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.addresses: list[str] = []
        self.text: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.addresses += [
            value or "" for name, value in attrs if name in ("src", "href", "action", "srcset")
        ]
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        pass

    def handle_endtag(self, tag: str) -> None:
        assert self.open and self.open.pop() == tag, f"</{tag}> closes nothing"

    def handle_data(self, data: str) -> None:
        self.text.append(data)


def checked(path: Path) -> tuple[str, str]:
    """The report's markup and its text, after it was found whole and self-contained."""
    page = path.read_text()
    parser = Balance()
    parser.feed(page)
    assert parser.open == []
    assert all(address.startswith("#") for address in parser.addresses)
    assert not re.search(r"url\(|@import|https?://(?!www\.w3\.org/2000/svg)", page)
    assert not re.search(
        r"\bnan\b|\binf\b|NaN|Infinity", re.sub(r"<script>.*?</script>", "", page, flags=re.S)
    )
    return page, " ".join(parser.text)


@pytest.mark.parametrize(("engines", "sizes"), [(2, "fast 2 · heavy 1"), (3, "fast 2 → 3 · heavy 1")])
def test_the_heading_says_what_a_pool_was_scaled_to(tmp_path: Path, engines: int, sizes: str) -> None:
    """The manifest asks for two fast workers."""
    _, text = checked(write_report(write_run(tmp_path, Job(steps=6, fast=engines))))
    assert f"trainer 1 · {sizes}" in text


def test_masked_tokens_have_a_chart_where_there_are_some(tmp_path: Path) -> None:
    title = "Tokens too old to be trained"
    _, text = checked(write_report(write_run(tmp_path / "masks", Job(steps=6, masked=0.2))))
    assert title in text and "longest quarter" in text
    _, text = checked(write_report(write_run(tmp_path / "waits", Job(steps=6))))
    assert title not in text


def test_a_run_that_is_routed_by_length_has_all_of_its_figures(tmp_path: Path) -> None:
    page, text = checked(write_report(write_run(tmp_path, Job(steps=12, by_length=True))))
    for heading in (
        "How were responses placed and moved?", "From which length on a response was long",
        "Why responses moved", "Expected against real lengths", "longest responses: where each ran",
    ):  # fmt: skip
        assert heading in text, heading
    assert "division" not in text, "it is no work of the driver"
    assert len(page) < 1_000_000


@pytest.mark.parametrize("name", ["equal_groups", "mixed_share", "samples", "reward_mean", "masked"])
@pytest.mark.parametrize("value", [1e308, -1e308, 10**400])
def test_a_report_of_a_run_with_numbers_that_no_figure_can_be_made_of(
    tmp_path: Path, name: str, value: float
) -> None:
    run = write_run(tmp_path, Job(steps=6, masked=0.2))
    rows = [json.loads(line) for line in (run / METRICS_FILE).read_text().splitlines()]
    odd: object = {"tokens": value} if name == "masked" else value
    (run / METRICS_FILE).write_text("\n".join(json.dumps({**row, name: odd}) for row in rows))
    checked(write_report(run))


def test_a_report_of_a_run_whose_first_events_were_removed(tmp_path: Path) -> None:
    run = write_run(tmp_path, Job(steps=40, slow_step=3))
    for step in range(20):
        shutil.rmtree(run / "events" / f"step_{step}")
    _, text = checked(write_report(run))
    assert "Events are there from step 21 on" in text
    details = analyse_run(run).details
    assert details and all(detail.window.step >= 20 for detail in details)


@pytest.mark.parametrize("wanted", [40, 30, None])
def test_a_run_that_is_not_done_says_so(tmp_path: Path, wanted: int | None) -> None:
    folder = write_run(tmp_path, Job(steps=30))
    manifest = job()
    manifest["spec"]["training"]["schedule"] |= {"totalSteps": wanted} if wanted else {}
    (folder / "job.yaml").write_text(json.dumps(manifest))
    (tmp_path / "page.html.tmp").write_text("mine")
    _, text = checked(write_report(folder, tmp_path / "page.html"))
    told = "30 of 40 steps are trained: training goes on, or ended before it was done."
    assert (told in text) == (wanted == 40)
    assert "steps are trained" not in text or wanted == 40
    assert (tmp_path / "page.html.tmp").read_text() == "mine"


def test_the_report_answers_the_questions(tmp_path: Path) -> None:
    page, text = checked(write_report(write_run(tmp_path, Job(steps=40, slow_step=23, restart_at=30))))
    for heading in (
        "What would help", "Did it learn?", "Where did the time go?", "Which requests were the long tail?",
        "How old were the samples?", "Reward", "Loss", "KL to the reference", "Time per step",
        "Time of pool trainer",
        "Time of pool fast", "Life of a sample", "Steps that stand out", "Single steps", "Slowest requests",
        "Lengths of responses, cumulative", "Durations of requests, cumulative", "How responses ended",
        "Attempts per response", "Age when trained", "Engines", "Was anything lost?",
    ):  # fmt: skip
        assert heading in text, heading
    assert "Training was interrupted once and went on at step 26" in text
    assert re.search(
        r"2027-01-15 08:\d\d:\d\d UTC: the run ended or was killed after this last step\. Training went on "
        r"20 s later from the checkpoint of step 25; 6 steps were trained again\.",
        text,
    )
    assert (
        "No prompt is lost: 8 groups interrupted when the job was resumed, 40 finished groups discarded when "
        "the job was resumed; their prompts are generated again. Not trained: 3 responses without a reward "
        "(timeout)." in text
    )
    assert "184.0" in text, "the request that hung"
    assert "step 24: took" in text
    assert 20 <= page.count('<section class="step"') <= 24
    assert page.count('<section class="step" data-step="23">') == 1, "the odd step is the one that is shown"


@pytest.mark.parametrize(
    ("start", "sentence"),
    [
        (
            Start(1_800_000_044.0, 60, "trainer lost", "rank 1 died", 1_800_000_020.0, 5),
            "2027-01-15 08:00:20 UTC: the trainer was lost (rank 1 died). Training went on 24 s later from "
            "the checkpoint of step 60; 5 steps were trained again.",
        ),
        (
            Start(1_800_000_044.0, 0, "trainer lost", "rank 1 died", 1_800_000_020.0, 1),
            "2027-01-15 08:00:20 UTC: the trainer was lost (rank 1 died). Training went on 24 s later from "
            "the beginning; 1 step was trained again.",
        ),
        (
            Start(1_800_007_220.0, 7, "resumed", "", 1_800_000_020.0, 2),
            "2027-01-15 08:00:20 UTC: the run ended or was killed after this last step. Training went on "
            "2 h 00 min later from the checkpoint of step 7; 2 steps were trained again.",
        ),
        (
            Start(1_800_000_044.0, 0, "resumed"),
            "The run ended or was killed before its first step. Training went on from the beginning; no step "
            "was trained again.",
        ),
        (
            Start(1_800_000_044.0, 12, "trainer resized", "", 1_800_000_020.0),
            "2027-01-15 08:00:20 UTC: the trainer was stopped, to go on with another number of workers. "
            "Training went on 24 s later from the checkpoint of step 12; no step was trained again.",
        ),
    ],
)
def test_interruptions_in_words(start: Start, sentence: str) -> None:
    assert interruption(start) == sentence


def test_tokens_per_second_are_those_of_the_steps_over_their_time(tmp_path: Path) -> None:
    """Whatever each row says of its own minute, and however long the start took."""
    run = write_run(tmp_path, Job(steps=20, restart_at=12))
    analysis = analyse_run(run)
    tokens = sum(row["response_tokens"] for row in analysis.metrics.rows)
    _, text = checked(write_report(run))
    assert f"{tokens / analysis.seconds:,.0f} response tokens trained per second" in text


def test_the_engines_of_a_pool_are_as_idle_as_the_pool(tmp_path: Path) -> None:
    """In both tables, also where an interruption lies between the steps."""
    run = write_run(tmp_path, Job(steps=20, fast=1, heavy=0, restart_at=12))
    page, _ = checked(write_report(run))
    (pool,) = re.findall(r"<tr><td>fast</td>.*?</tr>", page)[:1]
    (engine,) = re.findall(r"<tr><td>fast-0</td>.*?</tr>", page)[:1]
    shares = [re.findall(r"<td class=n>([\d.]+ %)</td>", row) for row in (pool, engine)]
    work, sync, _, _, idle = shares[0]
    assert shares[1] == [work, sync, idle]


def test_passes_of_the_slowest_rank_beside_what_was_expected(tmp_path: Path) -> None:
    run = write_run(tmp_path, Job(steps=6))
    titles = ("Forward and backward passes of the slowest rank", "Slowest rank of the trainer")
    page, text = checked(write_report(run))
    assert all(title in text for title in titles)
    assert "as expected" in page
    # A run of a version that did not measure them.
    metrics = run / "metrics.jsonl"
    metrics.write_text(re.sub(r'"passes":{[^}]*},', "", metrics.read_text()))
    _, text = checked(write_report(run))
    assert not any(title in text for title in titles)


def test_a_chart_of_what_was_not_measured_is_left_out(tmp_path: Path) -> None:
    run = write_run(tmp_path, Job(steps=6))
    metrics = run / "metrics.jsonl"
    metrics.write_text(re.sub(r'"kl":[^,]*,', "", metrics.read_text()))
    _, text = checked(write_report(run))
    assert "KL to the reference" not in text and "Entropy" in text
    assert "KL to the teacher" not in text


def test_the_way_to_a_teacher_is_shown_where_there_is_one(tmp_path: Path) -> None:
    run = write_run(tmp_path, Job(steps=6))
    metrics = run / "metrics.jsonl"
    metrics.write_text(metrics.read_text().replace('"kl":', '"teacher_kl":'))
    _, text = checked(write_report(run))
    assert "KL to the teacher" in text and "KL to the reference" not in text


def test_a_report_of_a_run_whose_files_were_thinned_out(tmp_path: Path) -> None:
    run = write_run(tmp_path, Job(steps=12, by_length=True))
    metrics, lengths = run / "metrics.jsonl", run / "lengths.jsonl"
    *older, before, newest = metrics.read_text().splitlines()
    began = json.loads(before)["time"]
    metrics.write_text(f'{older[0]}\n{newest[:-1]},"began":{began}}}\n')
    header, *responses = lengths.read_text().splitlines(keepends=True)
    lengths.write_text("".join([f'{header[:-2]},"removed":5}}\n', *responses[: len(responses) // 2]]))
    _, text = checked(write_report(run))
    assert "Rows of 2 of 12 steps are there: metrics.jsonl keeps the newest steps all" in text
    assert "those of 5 groups were taken out of lengths.jsonl, to keep it small" in text
    assert "12 steps, " in text and "Training was not interrupted" in text


@pytest.mark.parametrize("broken", [ValueError("no engine fits"), KeyError("x")])
def test_a_simulator_that_fails_is_said_and_not_fatal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, broken: Exception
) -> None:
    def fail(*_: object) -> None:
        raise broken

    run = write_run(tmp_path, Job(steps=6))
    monkeypatch.setattr(page_module, "measured_run", fail)
    _, text = checked(write_report(run))
    assert f"Pool sizes could not be simulated ({type(broken).__name__}: " in text
    assert "Did it learn?" in text


@pytest.mark.parametrize(("took", "left"), [(5.0, 10.0), (35.0, 5.0), (50.0, 0.0)])
def test_after_a_long_analysis_sizes_are_searched_for_less_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, took: float, left: float
) -> None:
    given: list[float] = []

    def propose(spec: object, measured: object, seconds: float) -> None:
        given.append(seconds)

    run = write_run(tmp_path, Job(steps=6))
    times = iter([100.0, 100.0 + took])
    monkeypatch.setattr(page_module, "measured_run", lambda *_: object())
    monkeypatch.setattr(page_module, "propose", propose)
    monkeypatch.setattr(page_module, "monotonic", lambda: next(times))
    write_report(run)
    assert given == [left]


def test_sizes_that_the_simulator_finds_faster_are_advice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = write_run(tmp_path, Job(steps=12, by_length=True))
    manifest = (run / "job.yaml").read_text().replace("accelerator: cpu", "accelerator: nvidia")
    (run / "job.yaml").write_text(manifest.replace("pools: {", "pools: {trainer: {replicas: 2}, "))
    monkeypatch.setattr(page_module, "propose", lambda spec, measured, seconds: Unfinished(5))
    page, text = checked(write_report(run))
    assert "search the best sizes for 5 accelerators" in text
    assert "<code>rljob trace fit " in page


@pytest.mark.parametrize("missing", ["events", "metrics.jsonl", "job.yaml"])
def test_a_part_that_is_missing_is_said_and_not_fatal(tmp_path: Path, missing: str) -> None:
    run = write_run(tmp_path / "run", Job(steps=6))
    (run / missing).rename(tmp_path / "elsewhere")
    _, text = checked(write_report(run))
    remark = {
        "events": "training.profiling.events is false",
        "metrics.jsonl": "metrics.jsonl is missing or empty",
        "job.yaml": "run",
    }[missing]
    assert remark in text


def test_names_are_escaped(tmp_path: Path) -> None:
    run = tmp_path / "<script>alert(1)<"
    write_run(run, Job(steps=3))
    (run / "job.yaml").unlink()
    page, _ = checked(write_report(run))
    assert "<script>alert" not in page and "&lt;script&gt;alert(1)&lt;" in page


def test_a_chart_does_not_grow_with_its_data() -> None:
    def size(count: int) -> int:
        values = [float(index % 17) for index in range(count)]
        lines = [Series("a", values)]
        steps = [float(index) for index in range(count)]
        return len(line_chart(steps, lines)) + len(stacked_chart(steps, lines))

    assert size(100_000) < 2.5 * size(POINTS)


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [
        (0, 1, [0, 0.2, 0.4, 0.6, 0.8, 1.0]),
        (0, 59, [0, 20, 40]),
        (-0.04, 0.05, [-0.04, -0.02, 0, 0.02, 0.04]),
        (3, 3, [3]),
    ],
)
def test_ticks_are_round(low: float, high: float, expected: list[float]) -> None:
    assert ticks(low, high) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("values", "labels"),
    [
        ([0, 20, 40], ["0", "20", "40"]),
        ([11.7302, 11.7304, 11.7306], ["11.7302", "11.7304", "11.7306"]),  # as an entropy that hardly moves
        ([0.0002, 0.0004], ["2e-4", "4e-4"]),
        ([1e6, 1.5e6, 2e6], ["1.0e6", "1.5e6", "2.0e6"]),
        ([10000, 10000.5], ["10,000.0", "10,000.5"]),
        ([5e4], ["50,000"]),
        ([], []),
    ],
)
def test_no_two_ticks_read_the_same(values: list[float], labels: list[str]) -> None:
    assert tick_labels(values) == labels


@pytest.mark.parametrize("values", [[None, None], [], [1.0], [None, 2.0, None], [5.0, 5.0]])
def test_charts_take_what_there_is(values: list[float | None]) -> None:
    chart = line_chart([float(index) for index in range(len(values))], [Series("a", values)])
    assert ("<path" in chart) == any(value is not None for value in values)
    assert curve_chart([("a", [])], "s") == ""


@pytest.mark.parametrize(
    ("values", "lines", "dots"),
    [
        ([1.0, 2.0, 3.0], 1, 0),
        ([1.0, None, 3.0, None, 2.0], 0, 3),  # as what is measured every second step
        ([1.0, 2.0, None, 3.0, None, 2.0, 2.5], 2, 1),
        ([None, 2.0, None], 0, 1),
    ],
)
def test_what_has_no_neighbour_is_a_dot(values: list[float | None], lines: int, dots: int) -> None:
    chart = line_chart([float(index) for index in range(len(values))], [Series("a", values)])
    drawn = dict(re.findall(r'<path class="(line|dot) s\d" d="([^"]*)"', chart))
    assert drawn.get("line", "").count("M") == lines
    assert drawn.get("dot", "").count("M") == dots


def test_evaluations_are_curves(tmp_path: Path) -> None:
    write_run(tmp_path, Job(steps=6))
    page, _ = checked(write_report(tmp_path))
    assert "Evaluation" not in page
    log = EvaluationLog(tmp_path)
    log.begin(0)
    for step in (0, 3, 6):
        parts = {"right": step / 6, "form": 0.0}
        graded = [[GradedResponse(step / 6, 4, parts=parts), GradedResponse(1.0, 4)]]
        sets = {name: score_set(graded, 1.0) for name in ("easy", "hard")}
        log.write(EvaluationLine(step=step, version=step, time=1.0, seconds=1.0, sets=sets), [])
    page, _ = checked(write_report(tmp_path))
    assert "Evaluation: mean reward" in page and "Evaluation: pass@k" in page
    assert page.count("Evaluation: parts of the reward") == 2
    for label in ("easy", "hard", "easy pass@1", "hard pass@2", "form", "right"):
        assert f">{label}<" in page


def test_an_evaluation_whose_rewards_failed_says_so(tmp_path: Path) -> None:
    log = EvaluationLog(write_run(tmp_path, Job(steps=6)))
    log.begin(0)
    for step, failed in enumerate([(1, 1), (0, 1), (1, 1)]):
        graded = [GradedResponse(None if fails else 1.0, 4, failure="m.py: <x>") for fails in failed]
        sets = {"held_out": score_set([graded], 1.0)}
        log.write(EvaluationLine(step=step, version=step, time=1.0, seconds=1.0, sets=sets), [])
        _, text = checked(write_report(tmp_path))
        told = "the reward failed for 2 of 2 responses of held_out" in text
        assert told == (failed == (1, 1)) and ("m.py: <x>" in text) == told


def test_what_loggers_did_not_get_is_among_what_was_lost(tmp_path: Path) -> None:
    write_run(tmp_path, Job(steps=6))
    _, text = checked(write_report(tmp_path))
    assert "not sent to" not in text
    for points, why in ((2, "at first"), (4, "answered <503>")):
        append_unsent(tmp_path, Unsent("webhook", 1.0, points, why))
    append_unsent(tmp_path, Unsent("wandb", 1.0, 1, "there is no key"))
    _, text = checked(write_report(tmp_path))
    words = " ".join(text.split())
    assert f"steps and evaluations not sent to webhook 6 answered <503>; {KEPT}" in words
    assert "steps and evaluations not sent to wandb 1 there is no key;" in words


def test_what_loggers_did_not_get_is_told_of_a_run_without_counts(tmp_path: Path) -> None:
    append_unsent(tmp_path, Unsent("wandb", 1.0, 1, "there is no key"))
    _, text = checked(write_report(tmp_path))
    assert "not sent to wandb" in text
