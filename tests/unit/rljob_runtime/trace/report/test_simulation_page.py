"""The page of `rljob simulate --html`."""

import re
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from rljob_runtime.cli import main
from rljob_runtime.routing.requests import EngineShape
from rljob_runtime.simulate.compare import Compared
from rljob_runtime.simulate.outcome import Outcome, Quantiles
from rljob_runtime.trace.forecast.text import means
from rljob_runtime.trace.report.lanes import ROW, SPAN
from rljob_runtime.trace.report.simulation_page import simulation_page
from tests.support.jobs import job

TIMES = Quantiles(1.0, 2.0, 3.0)
RUN = Outcome(
    wall=10.0, samples=40, tokens=400, idle=0.25, first_idle=0.0, loading=0.0, response=TIMES, group=TIMES,
    moves=0, moved_tokens=0, stall=0.0, pushed_out=0, restarts=0, wasted_tokens=0, busy=(10.0, 5.0),
    lines=([(0.0, 8)], [(0.0, 4), (5.0, 0)]), steps=(5.0, 10.0),
)  # fmt: skip
"""One engine at its limit of 8 all the time; another at half of it for half of the time."""
SHAPES = [EngineShape("fast", 8, None), EngineShape("heavy", 8, None)]


def page(*found: Compared, shapes: list[EngineShape] = SHAPES, limits: tuple[str, ...] = ()) -> str:
    return simulation_page("a<b", "2 engines", limits, "lengths", found, "adaptive", shapes)


def rows(markup: str) -> list[str]:
    """The drawings of all rows."""
    return re.findall(r'<g transform="translate\(0 \d+\)">(.*?)</g>', markup)


def heights(drawing: str) -> list[float]:
    """How much of the row each part of it fills."""
    (path,) = re.findall(r'class="f\d" d="M0 \d+([^"]*)V\d+z"', drawing)
    floor = ROW - 1
    return [(floor - float(y)) / (ROW - 3) for y in re.findall(r"V([\d.]+)H", path)]


def test_each_engine_has_a_row_as_full_as_it_was() -> None:
    trainer, fast, heavy = rows(page(Compared("adaptive", [RUN])))
    assert re.findall(r"M([\d.]+) 1v", trainer) == [f"{SPAN / 2:.1f}", f"{SPAN:.1f}"], "ends of steps"
    assert set(heights(fast)) == {1.0} and "up to 8.0 requests at a time, of 8" in fast
    half = heights(heavy)
    assert half[: len(half) // 2] == pytest.approx([0.5] * (len(half) // 2), abs=0.01)
    assert set(half[len(half) // 2 :]) == {0.0}


def test_policies_have_one_scale_of_time_and_the_job_s_own_is_the_first() -> None:
    slower = replace(RUN, wall=20.0, lines=([(0.0, 8)], [(0.0, 8)]), steps=(20.0,))
    found = page(Compared("adjacent", [slower]), Compared("adaptive", [RUN]))
    assert re.findall(r"<h3>(\w+)", found) == ["adaptive", "adjacent"]
    assert re.findall(r'data-seconds="([\d.]+)"', found) == ["20.0000"] * 2
    fast = heights(rows(found)[1])
    assert set(fast[: len(fast) // 2]) == {1.0} and set(fast[len(fast) // 2 :]) == {0.0}


def test_of_many_engines_some_are_shown_and_the_rest_is_counted() -> None:
    many = replace(RUN, lines=([(0.0, 1)],) * 100)
    found = page(Compared("adaptive", [many]), shapes=[SHAPES[0]] * 100)
    assert len(rows(found)) == 41 and "60 more engines are not shown" in found


def test_what_a_manifest_says_is_text() -> None:
    assert "<h1>a&lt;b</h1>" in page(Compared("adaptive", [RUN]))


def test_what_is_not_simulated_is_told_before_the_drawings() -> None:
    told = "<p>Not simulated: a &lt; b.</p><p>c</p><h2>"
    assert told in page(Compared("adaptive", [RUN]), limits=("Not simulated: a < b.", "c"))
    assert "<p>" not in page(Compared("adaptive", [RUN]))


def test_an_engine_runs_nothing_after_the_end() -> None:
    assert means([(0.0, 2), (1.0, 4)], 2.0, 4.0, 4) == [2.0, 4.0, 0.0, 0.0]
    assert means([], 0.0, 0.0, 2) == [0.0, 0.0]


@pytest.fixture
def manifest(tmp_path: Path) -> Path:
    file = tmp_path / "job.yaml"
    file.write_text(yaml.safe_dump(job()))
    return file


def test_the_command_writes_the_page_beside_what_it_prints(
    manifest: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = manifest.with_name("page.html")
    assert main(["simulate", str(manifest), "--seeds", "1", "--html", str(file)]) == 0
    told, found = capsys.readouterr().out, file.read_text()
    for policy in ("adjacent", "interleaved", "leastInFlight", "adaptive"):
        assert f"\n{policy}" in told and f"<h3>{policy}" in found
    for said in ("Assumed (defaults", "count from when the bound admits the group"):
        assert said in told and said in found


def test_a_page_for_which_the_disk_has_no_room_is_named(
    manifest: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["simulate", str(manifest), "--html", "/dev/full"]) == 1
    why = "rljob: the page cannot be written: /dev/full: No space left on device.\n"
    assert capsys.readouterr().err == why


def test_a_page_takes_the_place_of_another_page_alone(
    manifest: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The manifest was written over where --html named it."""
    monkeypatch.setattr("rljob_runtime.trace.forecast.simulate.compare", None)
    before = manifest.read_text()
    assert main(["simulate", str(manifest), "--html", str(manifest)]) == 2
    assert capsys.readouterr().err == (
        f"rljob: {manifest} is there already, and is no page: name another file with --html.\n"
    )
    assert manifest.read_text() == before
    for content in ("", "<!DOCTYPE html><html>"):
        file = manifest.with_name("page.html")
        file.write_text(content)
        with pytest.raises(TypeError, match="'NoneType' object is not callable"):
            main(["simulate", str(manifest), "--html", str(file)])


def test_sizes_have_no_page(manifest: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["simulate", str(manifest), "--size", "4", "--html", "page.html"])
    assert "--html: not allowed with argument --size" in capsys.readouterr().err
