"""Manifests in the documentation are valid, and what the documents link to exists."""

import re
from pathlib import Path

import pytest

from rljob_api import RLJob
from rljob_runtime.exit_codes import ExitCode
from rljob_runtime.manifest.source import parse

ROOT = Path(__file__).parents[3]
PAGES = [ROOT / "README.md", ROOT / "examples" / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
MANIFESTS = [
    pytest.param(text, id=f"{page.name}-{number}")
    for page in PAGES
    for number, text in enumerate(
        re.findall(r"^```yaml\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL)
    )
    if "kind: RLJob" in text
]


@pytest.mark.parametrize("text", MANIFESTS)
def test_manifest(text):
    RLJob.model_validate(parse(text).value)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links(page):
    for target in re.findall(r"\]\(([^)#:]+)[^):]*\)", page.read_text()):
        assert (page.parent / target).exists(), target


def test_fields_named_in_the_verl_table_exist():
    text = (ROOT / "docs" / "moving-from-verl.md").read_text()
    named = set(re.findall(r"`((?:training|pools)\.[A-Za-z0-9.]+)", text))
    known = set(re.findall(r"^## spec\.(\S+)", reference(), re.MULTILINE))
    for section in re.split(r"^## ", reference(), flags=re.MULTILINE)[1:]:
        path = section.split("\n", 1)[0].removeprefix("spec").removeprefix(".")
        known |= {f"{path}.{field}" for field in re.findall(r"^\| `(\w+)`", section, re.MULTILINE)}
    assert len(named) > 30
    assert named - known == set()


def test_exit_codes_are_documented():
    table = (ROOT / "docs" / "operations.md").read_text()
    assert [int(code) for code in re.findall(r"^\| (\d+) \|", table, re.MULTILINE)] == list(ExitCode)


def reference() -> str:
    return (ROOT / "docs" / "rljob-reference.md").read_text()
