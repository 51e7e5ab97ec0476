"""Manifests in the documentation are valid, and what the documents link to exists."""

import re
from pathlib import Path

import pytest

from rljob_api import RLJob
from rljob_runtime.exit_codes import ExitCode
from rljob_runtime.manifest.source import parse

ROOT = Path(__file__).parents[3]
PAGES = [ROOT / "README.md", ROOT / "examples" / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
CODE = re.compile(r"^```.*?^```[^\n]*$", re.MULTILINE | re.DOTALL)
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
    """Each relative link leads to a file, and with an anchor to a heading of it."""
    for target in re.findall(r"\]\((?![a-z]+:)([^)\s]+)", CODE.sub("", page.read_text())):
        path, _, anchor = target.partition("#")
        file = page.parent / path if path else page
        assert file.exists(), target
        assert not anchor or anchor in anchors(file.read_text()), target


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_tables(page):
    """Each begins with a head, the line below which says so: without it, as after an empty line, its rows are
    shown as text."""
    heads = re.findall(r"(?:\A|\n)(?!\|)[^\n]*\n(\|[^\n]*)\n([^\n]*)", CODE.sub("", page.read_text()))
    assert [head for head, below in heads if not re.fullmatch(r"\|(?:-+\|)+", below)] == []


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("# In a cluster\n", ["in-a-cluster"]),
        ("## spec.data.sources[]\n", ["specdatasources"]),
        ("## Nothing after `kubectl apply`\n## A job's way\n", ["nothing-after-kubectl-apply", "a-jobs-way"]),
        ("## See [loggers](loggers.md), a_b\n", ["see-loggers-a_b"]),
        ("## Twice\n## Twice\n", ["twice", "twice-1"]),
        ("```\n# no heading\n```\n", []),
    ],
)
def test_anchors(text, expected):
    assert anchors(text) == expected


MIGRATIONS = sorted((ROOT / "docs").glob("moving-from-*.md"))


@pytest.mark.parametrize("page", MIGRATIONS, ids=lambda page: page.stem)
def test_fields_named_in_the_tables_of_counterparts_exist(page):
    named = set(re.findall(r"`((?:training|pools)\.[A-Za-z0-9.]+)", page.read_text()))
    assert len(named) > 30
    assert named - fields() == set()


@pytest.mark.parametrize("page", MIGRATIONS, ids=lambda page: page.stem)
def test_fields_named_after_another_exist(page):
    """As `targetModules` in "`training.adapter.rank`, `targetModules`"; names of other programs are not
    written so."""
    rows = re.findall(r"^\|(?:.*?[^\\])\|(.*)\|$", CODE.sub("", page.read_text()), re.MULTILINE)
    named = {name for row in rows for name in re.findall(r"`([a-z]+[A-Z][A-Za-z]*)(?:: [^`]*)?`", row)}
    # Values, too, are told by the reference.
    assert named - set(re.findall(r"`(\w+)`", reference())) == set()


def fields():
    """The path of every field of the reference, without its `spec`."""
    found = set(re.findall(r"^## spec\.(\S+)", reference(), re.MULTILINE))
    for section in re.split(r"^## ", reference(), flags=re.MULTILINE)[1:]:
        path = section.split("\n", 1)[0].removeprefix("spec").removeprefix(".")
        found |= {f"{path}.{field}" for field in re.findall(r"^\| `(\w+)`", section, re.MULTILINE)}
    return found


def test_exit_codes_are_documented():
    table = (ROOT / "docs" / "operations.md").read_text()
    assert [int(code) for code in re.findall(r"^\| (\d+) \|", table, re.MULTILINE)] == list(ExitCode)


def reference() -> str:
    return (ROOT / "docs" / "rljob-reference.md").read_text()


def anchors(text: str) -> list[str]:
    """What the headings of a page are called in links, as GitHub calls them; `make docs` checks those of the
    site."""
    found: list[str] = []
    for heading in re.findall(r"^#{1,6} (.*)$", CODE.sub("", text), re.MULTILINE):
        shown = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading.strip())
        name = re.sub(r"[^\w\- ]", "", shown.lower()).replace(" ", "-")
        again = len([each for each in found if re.fullmatch(rf"{re.escape(name)}(-\d+)?", each)])
        found.append(f"{name}-{again}" if again else name)
    return found
