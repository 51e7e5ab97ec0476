"""The examples as pages of the site, and links that lead where the site has a file."""

from pathlib import Path

import pytest

from tools.site.pages import example_pages, places, with_links

ROOT = Path(__file__).parents[4]
KNOWN = places(ROOT)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param("[a](rewards.md#parts)", "[a](rewards.md#parts)", id="a page"),
        pytest.param("[a](#here)", "[a](#here)", id="the page itself"),
        pytest.param("[a](https://x.org/y)", "[a](https://x.org/y)", id="elsewhere"),
        pytest.param("[a](../README.md)", "[a](index.md)", id="the readme"),
        pytest.param("[`a`](../examples/own-job)", "[`a`](examples/own-job.md)", id="a folder"),
        pytest.param("![a](pictures/report.png)", "![a](pictures/report.png)", id="a picture"),
        pytest.param("```\n[a](gone.md)\n```\n", "```\n[a](gone.md)\n```\n", id="code"),
    ],
)
def test_links_of_a_page(text: str, expected: str) -> None:
    assert with_links(text, "docs/data.md", "data.md", KNOWN) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param(
            "| [copy.yaml](copy.yaml) | [a](copy.yaml)", "| [copy.yaml](copy.md) | [a](copy.md)", id="two"
        ),
        pytest.param("[a](own-job/job.yaml)", "[a](own-job.md)", id="a file of an example"),
        pytest.param("[a](../docs/own-job.md#run-it)", "[a](../own-job.md#run-it)", id="a document"),
    ],
)
def test_links_of_the_table_of_examples(text: str, expected: str) -> None:
    assert with_links(text, "examples/README.md", "examples/index.md", KNOWN) == expected


def test_a_link_without_a_page() -> None:
    with pytest.raises(
        ValueError, match=r"^docs/data\.md: the site has no page for \.\./Makefile \(Makefile\)"
    ):
        with_links("[a](../Makefile)", "docs/data.md", "data.md", KNOWN)


def test_every_example_has_a_page_with_its_files() -> None:
    pages = example_pages(ROOT)
    assert set(pages) == {place for path, place in KNOWN.items() if path.startswith("examples")}
    for path in (ROOT / "examples").rglob("*.yaml"):
        assert path.read_text() in pages[KNOWN[path.relative_to(ROOT).as_posix()]]
