"""docs/measurements.md holds the recorded results."""

import json
import sys
from pathlib import Path

import pytest

from tests.bench import measurements
from tests.bench.measurements import PAGE, page


def test_the_page_is_up_to_date() -> None:
    assert PAGE.read_text() == page(), "python -m tests.bench.measurements"
    assert "{{" not in page()


def test_figures_stand_in_their_places_and_one_that_is_gone_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    row = {"name": "a step: time", "value": 2.0, "unit": "s (± 0.1)", "baseline": 1.6, "ratio": 1.25}
    (tmp_path / "here.json").write_text(json.dumps([row]))
    monkeypatch.setattr(measurements, "RESULTS", tmp_path)
    both = "| {{here | a step: time}} | {{here | a step: time | ratio}} |"
    assert measurements.filled(both) == "| 2 s (± 0.1) | 1.25 x |"
    assert measurements.missing(both + "{{gone | a step: time}}") == ["gone"]
    with pytest.raises(LookupError, match=r"here\.json has no figure 'a stop'"):
        measurements.filled("{{here | a stop}}")


def test_a_section_without_results_is_left_out_and_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    row = {
        "name": "a step", "value": 2.0, "unit": "s", "baseline": None, "ratio": None,
        "date": "2026-01-01", "machine": "a machine", "command": "python",
    }  # fmt: skip
    (tmp_path / "here.json").write_text(json.dumps([row]))
    (tmp_path / "texts.md").write_text(
        "# Page\n\n## With\n\n{{here}}\n\n## Without\n\n{{here}}\n\n{{gone}}\n\n## Words\n"
    )
    monkeypatch.setattr(measurements, "RESULTS", tmp_path)
    monkeypatch.setattr(measurements, "TEXTS", tmp_path / "texts.md")
    monkeypatch.setattr(measurements, "PAGE", tmp_path / "page.md")
    monkeypatch.setattr(sys, "argv", ["measurements"])
    measurements.main()
    written = (tmp_path / "page.md").read_text()
    headings = [line for line in written.splitlines() if line.startswith("#")]
    assert headings == ["# Page", "## With", "## Words"]
    assert "| a step | 2 s |" in written
    assert capsys.readouterr().err == "left out: 'Without', without results of gone\n"
