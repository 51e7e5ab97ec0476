"""The report on routing by length: what stands in it, and that nothing is said that was not measured."""

import re
from dataclasses import replace
from pathlib import Path

import pytest

from rljob_runtime.trace.analyse.analysis import analyse_run
from rljob_runtime.trace.analyse.requests import Attempt, Request
from rljob_runtime.trace.analyse.step_detail import REQUESTS, StepDetail
from rljob_runtime.trace.analyse.windows import Window
from rljob_runtime.trace.report.charts import scatter_chart
from rljob_runtime.trace.report.section_predictions import predictions
from rljob_runtime.trace.report.section_routing import routing
from rljob_runtime.trace.report.waterfall import REASONS, most_moved, path, waterfall
from tests.support.runtime.synthetic_run import Job, write_run


def words(markup: str) -> str:
    return re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", markup))


def test_what_was_measured_is_told(tmp_path: Path) -> None:
    analysis = analyse_run(write_run(tmp_path, Job(steps=12, by_length=True)))
    shares, text = analysis.scheduling.shares, words(routing(analysis))
    moved = analysis.scheduling.moved
    assert moved == shares["heavy"].moved_in == shares["fast"].moved_out > 10
    assert f"Responses went on on another engine {moved} times." in text
    total = shares["heavy"].tokens + shares["fast"].tokens
    assert f"The heavy pool generated {shares['heavy'].tokens / total * 100:.0f} % of the tokens" in text
    assert re.search(rf"long fast pool → heavy pool {moved} [\d.]+ [\d.]+ 50 ms 50 ms turned out", text)
    for title in ("Tokens generated", "From which length on", "Engines for long", "Moves between engines"):
        assert title in text, title
    # The busy share is that of the pool's time.
    busy = {pool.pool: 1 - pool.overall["idle"] for pool in analysis.pools}
    assert re.search(
        rf"heavy pool .* {busy['heavy'] * 100:.0f} % fast pool .* {busy['fast'] * 100:.0f} %", text
    )


def test_expectations_are_told_beside_what_one_guess_would_have_been(tmp_path: Path) -> None:
    found = analyse_run(write_run(tmp_path, Job(steps=12, by_length=True))).predictions
    text = words(predictions(found))
    assert found.count == 12 * 64 and found.mean_error < found.error_of_one_guess
    assert f"mean absolute log error {found.mean_error:.2f}" in text
    calls = found.calls
    assert f"{calls.rightly_long} rightly and {calls.wrongly_long} wrongly" in text
    assert calls.rightly_long > 0 and calls.wrongly_long > 0


def test_a_run_of_before_all_that_was_recorded_tells_what_it_can(tmp_path: Path) -> None:
    text = words(routing(analyse_run(write_run(tmp_path, Job(steps=4, heavy=0)))))
    assert "No response moved from one engine to another." in text and "fast pool" in text
    for title in ("Expected against", "From which length", "Engines for long", "Why responses", "heavy pool"):
        assert title not in text, title


def test_without_a_request_nothing_is_told(tmp_path: Path) -> None:
    assert words(routing(analyse_run(tmp_path))).strip() == "No request was recorded."


def stay(worker: str, start: float, end: float, left: str = "", for_long: bool = False) -> Attempt:
    finish = "abort" if left else "stop"
    return Attempt(worker, start, end - start, 10, finish, worker.split("-")[0], left, for_long)


@pytest.mark.parametrize(
    ("stays", "told"),
    [
        ([stay("fast-0", 0, 1)], "fast-0"),
        ([stay("fast-0", 0, 1, "long"), stay("heavy-1", 1, 2)], "fast-0 → heavy-1 (long)"),
        ([stay("fast-0", 0, 1, "update"), stay("fast-0", 1, 2)], "fast-0 → again (update)"),
        (
            [*(stay(f"fast-{n}", n, n + 1, "levelled") for n in range(9)), stay("fast-9", 9, 10)],
            "fast-0 → fast-1 (levelled) → fast-2 (levelled) → … → fast-7 (levelled) → fast-8 (levelled) → "
            "fast-9 (levelled)",
        ),
    ],
)  # fmt: skip
def test_the_way_of_a_response_in_words(stays: list[Attempt], told: str) -> None:
    assert path(stays) == told


def detail(*requests: Request) -> StepDetail:
    return StepDetail(Window(0, 1.0, 5.0), [], 0, [], [], [], {}, list(requests))


def test_a_bar_is_cut_where_the_response_moved_and_says_why() -> None:
    moved = Request(
        3, "3.1", 0, [stay("fast-0", 0.5, 2, "long"), stay("heavy-0", 2.1, 5), ], 20
    )  # fmt: skip
    page = waterfall(detail(moved))
    assert page.count('class="left"') == 1
    assert REASONS["long"] in page and "20 tokens: fast-0 → heavy-0 (long)" in page
    # From 0.5 to 5 s: the first stay has a third of the width.
    assert re.search(r'class="f0" d="M0.0 6h333.3', page) and re.search(r'class="f1" d="M355.6 2h644.4', page)
    assert "begins 500 ms before the step" in page and "Thick bars" in page


def test_the_step_that_is_shown_is_one_with_moves_or_the_slowest() -> None:
    def step(number: int, *requests: Request) -> StepDetail:
        return replace(detail(*requests), window=Window(number, 0.0, 9.0))

    quick, slow = (
        Request(0, "0.0", 0, [stay("fast-0", 1, 2)], 9),
        Request(1, "1.0", 0, [stay("fast-0", 1, 8)], 9),
    )
    moved = Request(2, "2.0", 0, [stay("fast-0", 1, 2, "long"), stay("heavy-0", 2, 3)], 9)
    assert most_moved([]) is None
    assert most_moved([step(0), step(1, quick), step(2, quick, slow), step(3, quick)]) == 2
    assert most_moved([step(0, slow), step(1, moved), step(2, quick, slow)]) == 1


def test_the_figure_explains_only_what_is_in_it() -> None:
    page = waterfall(detail(Request(0, "0.0", 0, [stay("fast-0", 1, 2)], 10)))
    assert "Thick bars" not in page and "before the step" not in page
    assert not any(f"<b>{word}</b>" in page for word in REASONS if word)
    assert waterfall(detail()) == ""


def test_the_page_stays_small_whatever_moves() -> None:
    stays = [stay(f"fast-{place % 50}", place, place + 1, "levelled") for place in range(30)]
    requests = [Request(uid, f"{uid}.0", 0, stays, 300) for uid in range(REQUESTS)]
    assert len(waterfall(detail(*requests))) < 200_000


def test_points_lie_on_two_logarithmic_axes_of_one_range() -> None:
    chart = scatter_chart([(10, 1000), (1000, 10)], "expected", "real")
    (dots,) = re.findall(r'class="dots s0" d="([^"]+)"', chart)
    assert dots == "M56.0,10.0h.01M628.0,186.0h.01"
    assert scatter_chart([], "a", "b") == "" and "nan" not in scatter_chart([(5, 5)], "a", "b")
